"""The part of the app that screens use: shared state, writing, commands, the banner. `tui.app` adds the screens."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from uuid import UUID

from textual import work
from textual.app import App
from textual.screen import Screen

from chessreg.errors import RegistryError, describe_error
from tui import show
from tui.actions import Action, apply_keys
from tui.entries import ENTRIES
from tui.state import save_copied_text
from tui.widgets.bars import Banner, TopBar
from tui.writes import Notice, Write, Writes

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from tui.data.query_answers import ScreenQuestion
    from tui.database_worker import DatabaseWorker
    from tui.model_process import ModelProcess
    from tui.state import RememberedState
    from tui.widgets.board import Glyphs

COMMAND_ERROR_S = 30.0  # seconds that the error of a command is shown
READ_ONLY_MESSAGE = "--read-only: nothing was changed"


def find_command_error(errors: Sequence[str]) -> str:
    """Return why a command failed: the last error that it printed and its hint, or else its last line."""
    error_place = max((n for n, line in enumerate(errors) if line.startswith("error: ")), default=len(errors) - 1)
    return "\n".join(errors[max(error_place, 0) :]).removeprefix("error: ")


class Host(App[Exception | None]):
    """The state and the actions of the app that screens share."""

    saved_state: RememberedState
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
    followed_jobs: set[UUID]  # jobs whose end is announced

    def apply_keys_to(self, actions: Iterable[Action]) -> list[Action]:
        """Return the actions with the user's keys, in ASCII if the terminal shows only that."""
        custom_actions = apply_keys(actions, self.keys)
        return [replace(action, ascii=True) for action in custom_actions] if self.is_ascii_only else custom_actions

    @property
    def is_ascii_only(self) -> bool:
        return self.plain and self.glyphs == "letters"

    @property
    def running_command(self) -> str:
        """Return the name of the command that this app started and that is still running."""
        names = [" ".join(takewhile(str.isalpha, shlex.split(line)[1:])) for line in self.model.commands]
        return names[0] if len(names) == 1 else f"{len(names)} commands" if names else ""

    @property
    def top_screen(self) -> Any:
        """Return the visible `AppScreen`, below a palette, or None."""
        raise NotImplementedError

    def follow(self, job_id: UUID) -> None:
        """Announce the end of this job on whichever screen is open then."""
        self.followed_jobs.add(job_id)

    def drop_draft(self, draft: Hashable, text: str) -> None:
        """Drop the draft of a submitted text, unless another text was typed meanwhile."""
        if self.drafts.get(draft) == text:
            del self.drafts[draft]

    def refuse_while_lost(self) -> bool:
        """Refuse to start a command while the registry cannot be read: it would create another registry there."""
        if self.lost:
            self.notify("the registry cannot be read now, so no command is started", severity="warning")
        return self.lost

    def prompt(self, question: str, on_answer: Callable[[str | None], None]) -> None:
        """Ask for one line, and pass it to `on_answer`: None if the user left the dialog."""
        raise NotImplementedError

    def open(self, noun: str, id: UUID, name: str) -> None:
        """Open the screen of a run, a job, or any other entity of the registry."""
        raise NotImplementedError

    def open_plot(self, question: ScreenQuestion) -> None:
        """Open the screen of a query's plots, that of boards if its first plot shows boards."""
        raise NotImplementedError

    def open_lineage(self, noun: str, id: str, name: str) -> None:
        """Open the lineage of an entity."""
        raise NotImplementedError

    def open_run_form(self, run_id: UUID, name: str) -> None:
        """Open the launch form with the settings of a run."""
        raise NotImplementedError

    def action_messages(self) -> None:
        """Open the screen of messages."""
        raise NotImplementedError

    def write(
        self, description: str, change: str, function: Callable[[SqlSession], Any], message: Callable[[Any], str]
    ) -> None:
        """Write a `change` of `description` by `function(sql)` in a separate transaction, after earlier changes.

        While the registry cannot be written, the change waits and is retried every 2 s. Afterwards, `message(answer)`
        is shown under the title `description`.
        """
        self.writes.add(Write(description, change, function, message))
        self.continue_writing()

    @work(group="write")
    async def continue_writing(self) -> None:
        """Write the waiting changes, the oldest first, until one must wait."""
        if self.writes.busy:
            return
        self.writes.busy = True
        try:
            while (first_write := self.writes.first) is not None:
                try:
                    answer = await self.database.ask(f"writing: {first_write.what}", first_write)
                except RegistryError as error:
                    if not first_write.error:
                        self.notify(
                            f"not written yet: {error.message}; retried every 2 s, ^n shows it",
                            title=f"{first_write.what}: {first_write.change}", severity="warning",
                        )  # fmt: skip
                    first_write.error = error.message
                    return
                except Exception as error:  # a name conflict or a bug: do not retry
                    self.writes.drop(first_write)
                    if not first_write.dropped:
                        self.notify_failure("written", f"{first_write.what}: {first_write.change}", error)
                    continue
                self.writes.drop(first_write)
                self.notify(first_write.message(answer), title=first_write.what)
                if self.top_screen is not None:
                    self.top_screen.load()
        finally:
            self.writes.busy = False
            self.show_waiting_changes()

    def show_waiting_changes(self) -> None:
        """Show in the top bar how many changes wait, or else which command is running."""
        if self.top_screen is not None:
            for bar in self.top_screen.query(TopBar):
                bar.held, bar.at_work = len(self.writes.blocked_writes), self.running_command

    def notify(self, message: str, *, title: str = "", severity: Any = "information", **more: Any) -> None:
        """Notify as textual does, without markup, and keep the notice for the screen of messages."""
        self.notices.append(Notice(datetime.now(UTC), title, message, severity))
        super().notify(message, title=title, severity=severity, **more | {"markup": False})

    def notify_failure(self, action: str, title: str, error: Exception) -> None:
        """Show an error of a task that is not retried. The banner would lose it to the next successful read."""
        message, hint, _ = describe_error(error)
        self.notify(f"not {action}: {message}" + (f" ({hint})" if hint else ""), title=title, severity="error")

    def show_failure(self, screen: Screen[Any], error: Exception) -> None:
        """Show the error in the banner, or end the program if the registry could not be opened at all."""
        if not self.database.is_open and not isinstance(error, RegistryError):
            self.exit(error)
            return
        message, hint, _ = describe_error(error)
        if isinstance(error, RegistryError):
            self.lost = True
            screen.stale = True  # type: ignore[attr-defined]  # it is read again once the registry is there
        note = "; retried every 2 s" if isinstance(error, RegistryError) else ""
        full_message = message + (f" ({hint}{note})" if hint else note)
        if not self.notices or self.notices[-1].message != full_message:
            self.notices.append(Notice(datetime.now(UTC), "", full_message, "error"))
        for banner in screen.query(Banner):
            banner.set_message(full_message, wrong=True)

    def clear_banner(self, screen: Screen[Any]) -> None:
        """Remove the banner."""
        self.lost = False
        for banner in screen.query(Banner):
            banner.clear_message()

    def action_go(self, name: str) -> None:
        """Open a main screen in its last state. If it is already open, return to its first screen, or clear the filter
        of that one."""
        top = self.top_screen
        if name == self.current_mode and len(self.screen_stack) > 1:
            self.return_to(1)
        elif top is not None and top.filtering is not None and (name == self.current_mode or not top.keeps_filter):
            top.step_back()
        self.switch_mode(name)
        self.saved_state.set("room", name)

    async def action_back(self) -> None:
        """Leave the screen. Does not await its removal, because the caller may belong to it."""
        top, has_dialog = self.top_screen, self.screen is not self.top_screen
        if top is not None and not has_dialog and top.step_back():
            return
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def return_to(self, depth: int) -> None:
        """Return to the screen of a breadcrumb: 0 is home, 1 the main screen, 2 the screen opened in it."""
        if not depth:
            self.action_go(ENTRIES[0].name)
            return
        for _ in self.screen_stack[depth:]:
            self.pop_screen()

    @work(group="copy")
    async def copy(self, text: str, noun: str) -> None:
        """Copy to the terminal's clipboard (OSC 52), to a file, and to tmux. The notice shows `noun`."""
        from asyncio import to_thread

        self.copy_to_clipboard(text)
        path = None if self.read_only else await to_thread(save_copied_text, text)
        self.notify(f"{noun}\nalso in {show.shorten_place(str(path))}" if path else noun, title="copied")

    @work(group="command")
    async def run_command(self, words: Sequence[str], exact: Sequence[str] = (), progress_text: str = "doing it",
                          done_text: str = "done", notice: str = "", on_success: Callable[[], None] = lambda: None
                          ) -> None:  # fmt: skip
        """Run a command of chessreg on this registry in a separate process, and call `on_success` if it succeeds.

        The notice shows the last line of the output, or `notice` and the last remark. `words` are displayed. `exact`
        are the arguments to run, if they differ from the displayed ones. The UI stays responsive meanwhile.
        """
        if self.read_only:
            self.notify(READ_ONLY_MESSAGE, severity="warning")
            return
        if self.refuse_while_lost():
            return
        self.notify(shlex.join(["chessreg", *words]), title=progress_text)
        status, output, err = await self.model.run_command(exact or words)
        errors = [line for line in err.splitlines() if line.strip()]
        if status:
            message = find_command_error(errors) or f"exit status {status}"
            self.notify(message, title=f"not {done_text}", severity="error", timeout=COMMAND_ERROR_S)
        else:
            on_success()
            last_lines = errors if notice else output.strip().splitlines() or errors
            self.notify("\n".join(filter(None, [notice, *last_lines[-1:]])), title=done_text)
            if self.top_screen is not None:
                self.top_screen.load()

    def find_banner(self) -> Banner | None:
        screen = self.top_screen
        return next(iter(screen.query(Banner)), None) if screen is not None else None
