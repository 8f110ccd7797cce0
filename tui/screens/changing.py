"""What can be done to jobs, in the list of them and in the room of one: cancel, try again, start sooner or later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from textual import work

from tui import show
from tui.actions import Action
from tui.screens.dialogs import Confirm
from tui.screens.room import Room


class ChangesJobs(Room):
    """A screen that has a `chosen` job."""

    @property
    def chosen(self) -> Mapping[str, Any] | None:
        raise NotImplementedError

    def offers(self, action: Action) -> bool:
        changes = action.place == self.place and action.method in ("cancel", "retry", "priority")
        return not (changes and self.chosen is None) and super().offers(action)

    def action_cancel(self, whole: str = "") -> None:
        if (row := self.chosen) is None:
            return
        if not whole:
            question = f"Cancel {row['title']}? Complete units are kept."
            self.app.push_screen(Confirm(question), partial(self._cancel, row, False))
        else:
            question = f"Cancel every job of launch {show.short(row['group_id'])}? Complete units are kept."
            self.app.push_screen(Confirm(question), partial(self._cancel, row, True))

    def _cancel(self, row: Mapping[str, Any], whole: bool, yes: bool | None) -> None:
        from chessreg.scheduling import queue

        if yes:
            self.change("cancelled", "it had ended already", queue.cancel, row, whole)

    def action_retry(self) -> None:
        from chessreg.scheduling import queue

        if (row := self.chosen) is not None:
            self.change("queued again", "only jobs that ended without finishing are tried again", queue.retry, row)

    def action_priority(self, by: str) -> None:
        from chessreg.scheduling.queue import prioritise

        if (row := self.chosen) is not None:
            do = partial(prioritise, by=int(by))
            self.change(f"priority {int(by):+d}", "only queued jobs have a place to change", do, row)

    @work(group="change")
    async def change(
        self, done: str, nothing: str, do: Callable[..., Any], row: Mapping[str, Any], whole: bool = False
    ) -> None:
        """Do it on the desk, say to how many it was done, and look again."""
        from tui.data import jobs

        def changed(session: Any) -> int:
            ids: list[UUID] = jobs.of_launch(session, row["group_id"]) if whole else [row["id"]]
            return jobs.change(session, do, ids)

        number = await self.ask("changing jobs", changed)
        if number is None:
            return
        if number:
            self.notify(f"{done}: {row['title'] if number == 1 else show.counted(number, 'job')}")
        else:
            self.notify(nothing, severity="warning")
        self.load()
