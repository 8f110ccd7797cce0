"""What screens ask of the app. Screens know this class only; `tui.app` imports them and does what is declared here."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from uuid import UUID

from textual.app import App
from textual.screen import Screen
from textual.worker import Worker

from tui.actions import Action, changed

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from tui.data.query_answers import Question
    from tui.database_worker import DatabaseWorker
    from tui.model_process import ModelProcess
    from tui.state import Remembered
    from tui.widgets.board import Glyphs
    from tui.writes import Notice, Writes


class Host(App[Exception | None]):
    """The state that screens share, and what they can have the app do."""

    remembered: Remembered
    database: DatabaseWorker
    model: ModelProcess
    read_only: bool
    lost: bool  # whether the registry cannot be read now
    plain: bool
    glyphs: Glyphs
    images: type[Any] | None
    pictures: bool
    keys: dict[str, str]
    place_shown: str
    since: datetime
    since_told: str
    writes: Writes
    notices: deque[Notice]
    drafts: dict[Hashable, str]  # text typed in dialogs and not submitted
    followed: set[UUID]  # jobs whose end is announced

    def keyed(self, actions: Iterable[Action]) -> list[Action]:
        """Actions with the user's own keys, shown as the terminal can show them."""
        own = changed(actions, self.keys)
        return [replace(action, ascii=True) for action in own] if self.only_ascii else own

    @property
    def only_ascii(self) -> bool:
        return self.plain and self.glyphs == "letters"

    @property
    def at_work(self) -> str:
        """Return the name of the command that was started here and is still running."""
        names = [" ".join(takewhile(str.isalpha, shlex.split(line)[1:])) for line in self.model.commands]
        return names[0] if len(names) == 1 else f"{len(names)} commands" if names else ""

    @property
    def top_screen(self) -> Screen[Any] | None:
        """The visible screen, below a palette."""
        raise NotImplementedError

    def follow(self, job_id: UUID) -> None:
        """Announce the end of this job on whichever screen is open then."""
        self.followed.add(job_id)

    def drop_draft(self, draft: Hashable, text: str) -> None:
        """Drop the draft of a submitted text, unless another text was typed meanwhile."""
        if self.drafts.get(draft) == text:
            del self.drafts[draft]

    def refused_while_lost(self) -> bool:
        """Say, where the registry cannot be read, that no command is begun: one would make another in its place."""
        if self.lost:
            self.notify("the registry cannot be read now: no command is begun on it", severity="warning")
        return self.lost

    def trouble(self, screen: Screen[Any], error: Exception) -> None:
        """Show the error in the banner. A registry that cannot be opened at all ends the program."""
        raise NotImplementedError

    def all_well(self, screen: Screen[Any]) -> None:
        """Remove the banner."""
        raise NotImplementedError

    def write(
        self, what: str, change: str, function: Callable[[SqlSession], Any], message: Callable[[Any], str]
    ) -> None:
        """Write a `change` of `what`, `function(sql)`, in a transaction of its own, after the changes before it. While
        the registry cannot be written it is held, and tried again every 2 s. `message(answer)` is then shown under the
        title `what`."""
        raise NotImplementedError

    def write_on(self) -> Worker[None]:
        """Write what waits, the oldest first, as far as it goes."""
        raise NotImplementedError

    def tell_held(self) -> None:
        """Say on top how many changes are held, else which command is at work."""
        raise NotImplementedError

    def run_command(self, words: Sequence[str], exact: Sequence[str] = (), doing: str = "doing it",
                    done: str = "done", told: str = "", succeeded: Callable[[], None] = lambda: None
                    ) -> Worker[None]:  # fmt: skip
        """Run a command of chessreg on this registry, in a process of its own; its last line is shown, or `told` and
        what it remarked last. `words` are shown, `exact` are run, where a person would write it otherwise. Every key
        works meanwhile. `succeeded` is called if it did."""
        raise NotImplementedError

    def copy(self, text: str, what: str) -> Worker[None]:
        """Copy by the terminal (OSC 52), into a file, and into tmux. The notice says `what` was copied."""
        raise NotImplementedError

    def prompt(self, question: str, answered: Callable[[str | None], None]) -> None:
        """Ask for one line; None when it was left."""
        raise NotImplementedError

    def open(self, noun: str, id: UUID, called: str) -> None:
        """The screen of a run, a job, or any other thing of the registry."""
        raise NotImplementedError

    def open_plot(self, question: Question) -> None:
        """The screen of a query's plots: of boards where its first plot is of these."""
        raise NotImplementedError

    def open_lineage(self, noun: str, id: str, called: str) -> None:
        """The lineage of a thing."""
        raise NotImplementedError

    def back_to(self, depth: int) -> None:
        """Return to the screen of a breadcrumb: 0 is home, 1 the room, 2 the screen opened in it."""
        raise NotImplementedError

    def action_go(self, name: str) -> None:
        """Go to a room as it was left; in that room, back to its first screen."""
        raise NotImplementedError

    async def action_back(self) -> None:
        """Leave the screen."""
        raise NotImplementedError

    def action_messages(self) -> None:
        """The screen of messages."""
        raise NotImplementedError
