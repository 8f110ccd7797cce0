"""The command palette: every action that the screen and the app offer, from the table of actions."""

from __future__ import annotations

from collections.abc import Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider

from tui.actions import Action
from tui.screens.room import Room


class Actions(Provider):
    """Finds an action by the words of what it does."""

    def found(self) -> Iterator[tuple[Action, Room]]:
        if isinstance(self.screen, Room):
            for action in self.screen.actions():
                if action.method != "palette":
                    yield action, self.screen

    async def discover(self) -> Hits:
        for action, room in self.found():
            yield DiscoveryHit(action.text, run(action, room), help=told(action))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, room in self.found():
            score = max(matcher.match(action.text), matcher.match(action.twin) if action.twin else 0.0)
            if score > 0:
                yield Hit(score, matcher.highlight(action.text), run(action, room), text=action.text, help=told(action))


def run(action: Action, room: Room):  # type: ignore[no-untyped-def]
    async def go() -> None:
        await room.app.run_action(action.call, default_namespace=room.node_of(action))

    return go


def told(action: Action) -> str:
    return f"{action.shown_keys}    {action.twin}".rstrip()
