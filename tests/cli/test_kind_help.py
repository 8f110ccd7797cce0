"""Help of every command and kind: the settings that `--help` shows, and texts that no help contains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

from chessreg.cli.base import Home
from chessreg.cli.root import COMMANDS, SECTIONS, root
from chessreg.cli.run import MAIN_SETTINGS, group_settings
from chessreg.runs.kind import load_kinds
from chessreg.runs.spec import find_variant_tag, list_variants, list_visible_settings
from tests.quick import quick_first

VARIANTS = [(name, value) for name, kind in load_kinds().items() for value in (list_variants(kind.spec) or [None])]


@pytest.mark.parametrize(("name", "value"), quick_first(12, VARIANTS))
def test_help_of_a_kind_shows_the_required_settings_and_at_most_ten_others(here: Any, name: str, value: str) -> None:
    kind = load_kinds()[name]
    tag = [f"--{find_variant_tag(kind.spec)}", value] if value else []
    assert here("run", name, *tag, "--help") == 0
    short = here.out
    assert here("run", name, *tag, "--help-all") == 0
    whole = here.out
    settings = list_visible_settings(kind.spec, value)
    of_short = {setting.path for setting in settings if re.search(rf"^  {setting.flag}[ ,/]", short, re.MULTILINE)}
    of_whole = {setting.path for setting in settings if re.search(rf"^  {setting.flag}[ ,/]", whole, re.MULTILINE)}
    required = {setting.path for setting in settings if setting.is_required}
    assert of_whole == {setting.path for setting in settings}
    assert required <= of_short
    assert len(of_short - required) <= MAIN_SETTINGS
    assert of_short == {s.path for part in list(group_settings(kind, settings).values())[:2] for s in part}
    assert ("--help-all" in short.splitlines()[-1]) == (of_short != of_whole)
    assert "Execution options" in whole
    assert "Execution options" not in short


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Context]]:
    yield context.command_path, context
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, parent=context, info_name=name)
        if isinstance(command, click.Group):
            yield from commands(command, below)
        else:
            yield below.command_path, below


VALUES_LEFT_OUT = re.compile(r"\[default: |\[required\]|\bleft out\b", re.IGNORECASE)


def options_without_default(context: click.Context) -> Iterator[tuple[str, str]]:
    """Name and help of each optional option with a value."""
    for parameter in context.command.params:
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record and not (parameter.is_flag or parameter.required):
            yield parameter.opts[0], record[1]


OUTSIDE = re.compile(r"specification|\.\./|design\.md|findings\.md", re.IGNORECASE)


@pytest.fixture(scope="module")
def every() -> dict[str, click.Context]:
    """Every command by its path, each for help of 100 columns."""
    return dict(commands(root, click.Context(root, info_name="chessreg", obj=Home(), terminal_width=100)))


def test_help_fits_100_columns_and_names_no_empty_default_or_document_outside_the_repository(
    every: dict[str, click.Context],
) -> None:
    wrong = []
    for path, context in every.items():
        context.meta["chessreg.help_all"] = True
        if hasattr(context.command, "find_typed_tag"):
            context.command.typed_words = []
        text = context.command.get_help(context)
        shown = " ".join(text.split())
        wrong += [f"{path}: {line}" for line in text.splitlines() if len(line) > 100]
        wrong += [f"{path}: {word}" for word in ("default: none", "default: ]") if word in shown]
        wrong += [f"{path}: {word}" for word in OUTSIDE.findall(shown)]
    assert wrong == []


def test_every_command_is_in_one_section() -> None:
    assert sum(map(len, SECTIONS.values())) == len(COMMANDS)
    shown = root.get_help(click.Context(root, info_name="chessreg"))
    for title, names in SECTIONS.items():
        section = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()] == list(names)


@pytest.mark.parametrize(("columns", "widest"), [(70, 70), (100, 100), (200, 120)])
def test_help_is_as_wide_as_the_terminal_up_to_120(
    here: Any, monkeypatch: pytest.MonkeyPatch, columns: int, widest: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert here("run", "play", "--help") == 0
    longest = max(map(len, here.out.splitlines()))
    assert widest - 12 < longest <= widest


def test_a_kind_may_not_call_a_setting_main_that_it_does_not_have() -> None:
    from chessreg.errors import BadInputError
    from chessreg.runs.kind import create_kind

    class Wrong(type(load_kinds()["cache"])):  # type: ignore[misc]
        main_settings = ("layers", "nonsense")

    with pytest.raises(BadInputError, match="main_settings") as error:
        create_kind(Wrong)
    assert "nonsense" in error.value.hint


def test_the_help_of_an_option_says_what_happens_when_it_is_left_out(every: dict[str, click.Context]) -> None:
    silent = [
        f"{path} {name}"
        for path, context in every.items()
        for name, text in options_without_default(context)
        if not VALUES_LEFT_OUT.search(text)
    ]
    assert not silent, f"{', '.join(silent)}: add `Left out: …`, or a default"
