"""Tables of text with one line per row: column widths, shortened texts, headings broken between words.

rich's tables fold cells that do not fit, down to single letters. Here each row keeps one line: columns are dropped, or
long texts shortened in the middle so that both ends can be read.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

GAP = 2  # between columns
SHORTEST = 8  # characters that shortening leaves of a text
SHORTEST_NAME = 24  # and of a name, which users copy into the next command
NAMES = frozenset({"name", "checkpoint", "model", "run"})  # columns with names


def measure_cell(text: str) -> int:
    """Return the terminal columns that the text occupies."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def measure_column(heading: str, cells: Sequence[str]) -> int:
    """Return the width of a column whose heading may break between words."""
    return max((measure_cell(text) for text in (*heading.split(), *cells)), default=0)


def measure_table(names: Sequence[str], headings: Mapping[str, str], cells: Mapping[str, Sequence[str]]) -> int:
    """Return the width of a table of these columns."""
    return sum(GAP + measure_column(headings[name], cells[name]) for name in names) - GAP


def shorten_to_fit(
    names: Sequence[str],
    texts: Sequence[str],
    headings: Mapping[str, str],
    cells: dict[str, list[str]],
    width: int,
) -> None:
    """Shorten the cells of the columns `texts`, the widest first, until the columns `names` fit `width`, or until each
    is as short as its heading or SHORTEST (SHORTEST_NAME in the columns NAMES)."""
    widths = {name: measure_column(headings[name], cells[name]) for name in names}
    min_widths = {
        name: max(SHORTEST_NAME if name in NAMES else SHORTEST, measure_column(headings[name], [])) for name in texts
    }
    excess_width = sum(widths.values()) + GAP * (len(names) - 1) - width
    while excess_width > 0 and (wide_names := [name for name in texts if widths[name] > min_widths[name]]):
        widths[max(wide_names, key=widths.__getitem__)] -= 1
        excess_width -= 1
    for name in texts:
        cells[name] = [shorten_text(text, widths[name]) for text in cells[name]]


def shorten_text(text: str, length: int) -> str:
    """Return the text in at most `length` terminal columns; a longer text keeps both ends.

    >>> shorten_text("contrastive:white_elo L5-6 x-0.8", 20)
    'contrastiv…5-6 x-0.8'
    """
    if measure_cell(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{take_beginning(text, length - 1 - tail)}…{take_beginning(text[::-1], tail)[::-1]}"


def take_beginning(text: str, width: int) -> str:
    """Return the longest beginning of the text that fits `width` columns."""
    end = min(len(text), width)
    while measure_cell(text[:end]) > width:
        end -= 1
    return text[:end]


def draw_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return the lines of a table: headings, a rule, one line per row; columns of `right` are aligned to the right."""
    widths = [measure_column(heading, [row[place] for row in rows]) for place, heading in enumerate(headings)]
    heading_lines = [textwrap.wrap(h, max(w, 1), break_long_words=False) for h, w in zip(headings, widths, strict=True)]
    height = max(map(len, heading_lines), default=0)
    heads = [[*[""] * (height - len(lines)), *lines] for lines in heading_lines]

    def join_cells(texts: Sequence[str]) -> str:
        padding = [" " * (width - measure_cell(text)) for text, width in zip(texts, widths, strict=True)]
        cells = [f"{p}{t}" if r else f"{t}{p}" for t, p, r in zip(texts, padding, right, strict=True)]
        return (" " * GAP).join(cells).rstrip()

    rule = "─" * (sum(widths) + GAP * (len(widths) - 1))
    return [*(join_cells(texts) for texts in zip(*heads, strict=True)), rule, *map(join_cells, rows)]


def wrap_text(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` characters, broken between words."""
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def name_hidden_columns(names: Sequence[str], width: int, hint: str, reason: str = "not shown") -> str:
    """Return one line of at most `width` characters that names columns which are left out; empty for none.

    >>> name_hidden_columns(["seed", "run", "overlap"], 37, "--wide")
    'not shown: seed, run, 1 more (--wide)'
    """
    for count in range(len(names), 0, -1):
        more = f", {len(names) - count:,} more" if count < len(names) else ""
        line = f"{reason}: {', '.join(names[:count])}{more} ({hint})"
        if len(line) <= width:
            return line
    return f"{len(names):,} columns {reason} ({hint})" if names else ""
