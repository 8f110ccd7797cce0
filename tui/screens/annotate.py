"""Annotate rows of any noun by keys: name, tag, note, star, pin, archive, invalidate."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import BadInputError
from tui import show
from tui.actions import make_bindings
from tui.data.annotations import annotate_targets, clear_invalidation, remove_tag, toggle_annotation
from tui.host import READ_ONLY_MESSAGE
from tui.screens.base import AppScreen
from tui.screens.dialogs import Confirm, Prompt

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession


TOGGLE_MESSAGES = {"star": ("starred", "no longer starred"), "pin": ("pinned", "no longer pinned"),
        "archive": ("archived", "no longer archived")}  # fmt: skip


ChosenRows = tuple[str, dict[UUID, str]]  # the noun, and the labels of the selected rows by id
AfterWrite = Callable[[], None]


class AnnotatingScreen(AppScreen):
    """A screen whose rows can be annotated: the marked rows, or else the row under the cursor."""

    also = ("annotate",)
    BINDINGS = make_bindings("annotate")

    def get_selected_rows(self) -> ChosenRows:
        raise NotImplementedError

    def get_row_under_cursor(self) -> ChosenRows:
        """Return the row to name. A name belongs to a single row, so marks are ignored."""
        return self.get_selected_rows()

    def describe_hidden(self, things: Collection[UUID]) -> str:
        """Return how many of `things` are not in the list, in words. Empty if all are."""
        return ""

    def action_toggle_mark(self, word: str) -> None:
        def format_result(is_marked: bool) -> str:
            return TOGGLE_MESSAGES[word][not is_marked]

        selected_rows = self.get_selected_rows()
        if not selected_rows[1] or not self.check_writable():
            return
        write = partial(self._write, selected_rows, word, format_result, partial(toggle_annotation, word=word))
        if hidden_note := self.describe_hidden(selected_rows[1]):
            question = f"{word.capitalize()} {join_chosen_labels(selected_rows[1])}, or undo it?\n{hidden_note}; "
            question += "u unmarks all."
            self.app.push_screen(Confirm(question), lambda yes: write() if yes else None)
        else:
            write()

    def action_tag(self) -> None:
        self._ask("Tag{}: (-TAG removes it)", self.get_selected_rows(), self._change_tag)

    def _change_tag(self, chosen_rows: ChosenRows, text: str, on_written: AfterWrite) -> None:
        """Add the tag `text` to the rows; `-TAG` removes the tag."""
        tag = text.removeprefix("-")
        if text.startswith("-"):
            notice, do = f"no longer tagged {tag}", partial(remove_tag, tag=tag)
        else:
            notice, do = f"tagged {tag}", partial(annotate_targets, word="tag", text=tag)
        self._write(chosen_rows, f"tag {text}", lambda _: notice, do, on_written)

    def action_note(self) -> None:
        self._ask("Note about{}:", self.get_selected_rows(), partial(self._annotate, "note", "noted"))

    def action_name(self) -> None:
        self._ask("Name{}:", self.get_row_under_cursor(), partial(self._annotate, "name", "named"), find_name_error)

    def action_invalidate(self) -> None:
        self._ask("What is wrong with{}? (- clears it)", self.get_selected_rows(), self._invalidate)

    def _invalidate(self, chosen_rows: ChosenRows, reason: str, on_written: AfterWrite) -> None:
        if reason == "-":
            self._write(chosen_rows, "valid again", lambda _: "valid again", clear_invalidation, on_written)
        else:
            self._annotate("invalid", "invalid", chosen_rows, reason, on_written)

    def _annotate(self, word: str, done_text: str, chosen_rows: ChosenRows, text: str, on_written: AfterWrite) -> None:
        do = partial(annotate_targets, word=word, text=text)
        self._write(chosen_rows, f"{word} {text}", lambda _: f"{done_text}: {text}", do, on_written)

    def _ask(self, question: str, chosen_rows: ChosenRows, on_answer: Callable[[ChosenRows, str, AfterWrite], None],
             wrong: Callable[[str], str] = lambda text: "") -> None:  # fmt: skip
        """Ask for one line of text about the rows of `chosen_rows` and pass it to `on_answer`.

        The answer applies to these rows even if the list has changed in the meantime.
        """
        if not chosen_rows[1] or not self.check_writable():
            return
        draft = question, chosen_rows[0], frozenset(chosen_rows[1])

        def handle_answer(text: str | None) -> None:
            if text:
                on_answer(chosen_rows, text, partial(self.app.drop_draft, draft, text))

        hidden_note = self.describe_hidden(chosen_rows[1])
        question_text = question.format(f" {count_chosen(*chosen_rows)}") + (
            f"\n{hidden_note}; u unmarks all." if hidden_note else ""
        )
        self.app.push_screen(Prompt(question_text, draft=draft, wrong=wrong), handle_answer)

    def check_writable(self) -> bool:
        if self.app.read_only:
            self.notify(READ_ONLY_MESSAGE, severity="warning")
        return not self.app.read_only

    def _write(
        self,
        chosen_rows: ChosenRows,
        change: str,
        notice: Callable[[Any], str],
        do: Callable[[SqlSession, str, list[UUID]], Any],
        on_written: AfterWrite = lambda: None,
    ) -> None:
        noun, ids = chosen_rows

        def finish_write(answer: Any) -> str:
            on_written()
            return notice(answer)

        self.app.write(join_chosen_labels(ids), change, lambda sql: do(sql, noun, list(ids)), finish_write)


def find_name_error(text: str) -> str:
    """Return why `text` cannot be a name. Empty if it can."""
    from chessreg.registry.names import require_name

    try:
        require_name(text)
    except BadInputError as error:
        return str(error)
    return ""


def join_chosen_labels(chosen_labels: dict[UUID, str]) -> str:
    """Return the labels of the selected rows, or their number if there are more than three."""
    labels = list(chosen_labels.values())
    return show.join_words(labels) if len(labels) <= 3 else f"these {len(labels)}"


def count_chosen(noun: str, chosen_labels: dict[UUID, str]) -> str:
    """Return the number and the labels of the selected rows, such as `2 runs (a and b)`."""
    if len(chosen_labels) == 1:
        return join_chosen_labels(chosen_labels)
    names = f" ({join_chosen_labels(chosen_labels)})" if len(chosen_labels) <= 3 else ""
    return f"{show.format_count(len(chosen_labels), noun)}{names}"
