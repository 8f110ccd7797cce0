"""Vim's keys for an editor: a normal mode, in which letters move and change, beside that in which they are typed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from textual import events
from textual.reactive import reactive
from textual.widgets import TextArea

COMMAND = re.compile(
    r"(?P<count>[1-9]\d*)?(?:(?P<operator>[dcy])(?P<over>gg|[hjklwbe0^$G]|(?P=operator))|(?P<alone>gg|[^dcyg\d]|0))"
)
BEGUN = re.compile(r"([1-9]\d*)?[dcy]?g?")
MOTIONS = ("h", "j", "k", "l", "w", "b", "e", "0", "^", "$", "gg", "G")
SHORT = {"x": "dl", "X": "dh", "D": "d$", "C": "c$", "S": "cc", "s": "cl"}  # stand for an operator and a motion
WORD = re.compile(r"\w+|[^\w\s]+")
STEP = re.compile(r"\w+\s*|[^\w\s]+\s*|\s+")  # from one word to the next


@dataclass(frozen=True)
class Change:
    """`text` in the place of [start, end), and the cursor at `at` of what comes of it. `taken` is what `p` puts back:
    whole lines end in a line break."""

    start: int
    end: int
    text: str
    at: int
    insert: bool = False
    taken: str | None = None


def line(text: str, at: int) -> tuple[int, int]:
    """Where the line of a place begins and ends."""
    end = text.find("\n", at)
    return text.rfind("\n", 0, at) + 1, len(text) if end < 0 else end


def moved(text: str, at: int, motion: str, count: int | None) -> int:
    """Where a motion leads to."""
    (begin, end), times = line(text, at), count or 1
    if motion in ("j", "k", "G", "gg"):
        lines, here = text.split("\n"), text.count("\n", 0, at)
        last, down = len(lines) - 1, times if motion == "j" else -times
        far = last if motion == "G" else 0
        to = min(max(0, here + down if motion in "jk" else (far if count is None else count - 1)), last)
        return sum(len(each) + 1 for each in lines[:to]) + (min(at - begin, len(lines[to])) if motion in "jk" else 0)
    if motion in "hl":
        return max(begin, at - times) if motion == "h" else min(end, at + times)
    if motion in "0^":
        return begin if motion == "0" else end - len(text[begin:end].lstrip())
    if motion == "$":
        return end
    if motion == "w":
        for _ in range(times):
            step = STEP.match(text, at)
            at = at if step is None else step.end()
        return at
    if motion == "b":
        starts = [word.start() for word in WORD.finditer(text) if word.start() < at]
        return starts[-times] if len(starts) >= times else 0
    ends = [word.end() - 1 for word in WORD.finditer(text) if word.end() - 1 > at]
    return ends[times - 1] if len(ends) >= times else len(text)


def operated(text: str, at: int, operator: str, motion: str, count: int | None) -> Change:
    """What `d`, `c` or `y` over a motion does; doubled, or over j, k, G and gg, it takes whole lines."""
    if motion in (operator, "j", "k", "G", "gg"):
        to = moved(text, at, "j", (count or 1) - 1) if motion == operator and (count or 1) > 1 else at
        to = to if motion == operator else moved(text, at, motion, count)
        start, end = line(text, min(at, to))[0], line(text, max(at, to))[1]
        taken = text[start:end] + "\n"
        if operator == "d":  # a line break goes too: that after the lines, or else that before them
            start, end = (start, end + 1) if end < len(text) else (max(0, start - 1), end)
            left = text[:start] + text[end:]
            return Change(start, end, "", line(left, min(start, len(left)))[0], taken=taken)
    else:
        if motion == "w" and operator == "c":
            motion = "e" if text[at : at + 1].strip() else "w"  # as vim: up to the word's end
        to = moved(text, at, motion, count)
        if motion == "e" and operator == "c" and (word := WORD.match(text, at)) and (count or 1) == 1:
            to = word.end() - 1
        start, end = min(at, to), min(max(at, to) + (motion == "e"), len(text))
        if motion == "w" and operator != "y" and "\n" in text[start:end]:
            end = line(text, start)[1]  # not into the next line
        taken = text[start:end]
    if operator == "y":
        return Change(at, at, "", start, taken=taken)
    return Change(start, end, "", start, operator == "c", taken)


def alone(text: str, at: int, key: str, count: int | None, register: str) -> Change | None:
    """What a key of its own does; None for one that does nothing."""
    begin, end = line(text, at)
    if key in MOTIONS:
        to = moved(text, at, key, count)
        return Change(at, at, "", max(begin, end - 1) if key == "$" else to)
    if key in SHORT:
        return operated(text, at, SHORT[key][0], SHORT[key][1], count)
    if key in "pP" and register:
        times, lines = count or 1, register.endswith("\n")
        if not lines:
            place = min(end, at + (key == "p"))
            return Change(place, place, register * times, place + len(register) * times - 1)
        if key == "P":
            return Change(begin, begin, register * times, begin)
        return Change(end, end, "\n" + (register * times).removesuffix("\n"), end + 1)
    places = {"i": at, "a": min(end, at + 1), "I": moved(text, at, "^", None), "A": end}
    if key in places:
        return Change(at, at, "", places[key], True)
    opened = {"o": (end, end + 1), "O": (begin, begin)}.get(key)
    return Change(opened[0], opened[0], "\n", opened[1], True) if opened else None


def change(text: str, at: int, keys: str, register: str = "") -> Change | None:
    """The change that keys of the normal mode make at a place; None where they make none.

    >>> change("SELECT a FROM b", 7, "dw")
    Change(start=7, end=9, text='', at=7, insert=False, taken='a ')
    """
    match = COMMAND.fullmatch(keys)
    if match is None:
        return None
    count = min(int(match["count"][:4]), 999) if match["count"] else None
    if match["operator"]:
        return operated(text, at, match["operator"], match["over"], count)
    return alone(text, at, match["alone"], count, register)


def place(text: str, at: int) -> tuple[int, int]:
    """Row and column of a place, both from 0."""
    return text.count("\n", 0, at), at - line(text, at)[0]


class VimEditor(TextArea):
    """An editor that may have vim's keys (`vim`): then Esc leads to the normal mode, and i, a, o and c back from it."""

    DEFAULT_CSS = """
    VimEditor.-vim, VimEditor.-vim:focus { border-bottom: solid $surface-lighten-2; }
    VimEditor { border-subtitle-color: $text-muted; }
    VimEditor.-normal { border-subtitle-color: $text-accent; }
    """

    vim: reactive[bool] = reactive(False)
    normal: reactive[bool] = reactive(False)
    _begun = _register = ""

    def watch_vim(self) -> None:
        self.normal = False
        self.tell_mode()

    def watch_normal(self) -> None:
        self._begun = ""
        self.tell_mode()

    def tell_mode(self) -> None:
        self.set_class(self.vim, "-vim")
        self.set_class(self.normal, "-normal")
        self.border_subtitle = (f"normal {self._begun}".rstrip() if self.normal else "insert") if self.vim else None

    def on_key(self, event: events.Key) -> None:
        if self.normal and (event.is_printable or event.key in ("enter", "backspace")):
            event.stop()
            event.prevent_default()
            self.type_command({"enter": "j", "backspace": "h", "space": "l"}.get(event.key, event.character or ""))

    def type_command(self, key: str) -> None:
        """A key of the normal mode, which may be the first of several."""
        keys = self._begun + key
        self._begun = keys if BEGUN.fullmatch(keys) else ""
        if not self._begun:
            if keys[-1] in "uU":
                self.undo() if keys[-1] == "u" else self.redo()
            elif self.do(keys):
                self.normal = False
        self.tell_mode()

    def do(self, keys: str) -> bool:
        """Do what the keys say; returns whether letters are typed now."""
        lines, (row, column) = self.document.lines, self.cursor_location
        text, at = "\n".join(lines), sum(len(line) + 1 for line in lines[:row]) + column
        done = change(text, at, keys, self._register)
        if done is None:
            return False
        if done.taken is not None:
            self._register = done.taken
        if done.text or done.start < done.end:
            start, end = place(text, done.start), place(text, done.end)
            self.replace(done.text, start, end, maintain_selection_offset=False)
            self.history.checkpoint()
        self.move_cursor(place("\n".join(self.document.lines), done.at))
        return done.insert
