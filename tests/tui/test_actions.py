"""One table of actions: every key does something, every action has a place, words of help and a command."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import tui
from tui.actions import (
    ACTIONS,
    EVERYWHERE,
    PLACES_WITH_OWN_KEYS,
    SHARED_PLACES,
    Action,
    check_keys,
    check_letters,
    check_shared_places,
)
from tui.entries import ENTRIES
from tui.screens.base import AppScreen

from .commands import command_of


def places() -> dict[str, Any]:
    """The class of each place: the one that takes its keys from it."""
    found: dict[str, Any] = {}
    for module in walk_packages(tui.__path__, "tui."):
        for cls in vars(import_module(module.name)).values():
            bound = vars(cls).get("BINDINGS", ()) if isinstance(cls, type) and cls.__module__ == module.name else ()
            for binding in bound:
                place = binding.id.partition(".")[0]
                assert found.setdefault(place, cls) is cls, f"{place} is taken by {found[place]} and {cls}"
    return found


PLACES = places()


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_an_action_is_bound_where_it_belongs_and_does_something(action: Action) -> None:
    owner = PLACES[action.place]
    assert callable(getattr(owner, f"action_{action.method}"))
    bound = owner._merged_bindings.key_to_bindings
    for key in action.keys.split(","):
        assert bound[key][0].action == action.call
    assert action.text
    assert action.text[0].isupper()


def test_a_key_taken_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="x in runs is both"):
        check_keys([Action("runs", "a", "x", "A"), Action("runs", "b", "y,x", "B")])
    with pytest.raises(ValueError, match="taken everywhere"):
        check_keys([Action("runs", "a", "q", "A"), Action(EVERYWHERE, "quit", "q", "Q")])


def test_a_letter_means_the_same_in_every_room() -> None:
    check_letters()
    with pytest.raises(ValueError, match=r"x is cancel in .*, and archive in"):
        check_letters([Action("jobs", "cancel", "x", "C"), Action("runs", "archive", "ctrl+x,x", "A")])
    with pytest.raises(ValueError, match=r"o is enter, and .*heat is not that"):
        check_letters([Action("table", "open", "enter,o", "O"), Action("board", "heat", "o", "H")])
    check_letters([Action("jobs", "cancel", "x", "C"), Action("messages", "drop", "x", "D", verb="cancel")])


FILLED_IN = {"KIND": "play", "./FILE.py": str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")}


@pytest.mark.parametrize("line", sorted({action.command for action in ACTIONS if action.command}))
def test_a_command_of_an_action_has_these_options(line: str) -> None:
    command, words = command_of([FILLED_IN.get(word, word) for word in shlex.split(line)])
    known = {flag: parameter for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    while words:
        word = words.pop(0)
        if word.startswith("-") and word != "--help":
            assert word in known, f"{command.name} has no {word}"
            if not getattr(known[word], "is_flag", False):
                assert words, f"{word} wants a value"
                words.pop(0)


def test_every_screen_has_the_keys_of_the_whole_house() -> None:
    for place, screen in PLACES.items():
        if issubclass(screen, AppScreen) and place not in PLACES_WITH_OWN_KEYS:
            own = {key for _, binding in screen._merged_bindings for key in [binding.key]}
            assert not own & {"q", "question_mark", "escape", *(entry.key for entry in ENTRIES)}


def test_places_beside_a_screens_own_are_known_where_keys_are_checked() -> None:
    screens, left = set(), [AppScreen]
    while left:
        screens.add(cls := left.pop())
        left += cls.__subclasses__()
    assert {(cls.place, cls.also) for cls in screens if cls.also and hasattr(cls, "place")} == set(SHARED_PLACES)
    check_shared_places(ACTIONS)
