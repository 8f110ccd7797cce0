"""The launch screens: forms made from the kinds' models, and a real job launched from one and seen to finish."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from chessreg.entities.vector import RelativeNorm
from chessreg.errors import RegistryError
from chessreg.registry import tables
from chessreg.runs.kind import find_kind, load_kinds
from chessreg.runs.spec import find_variant_tag, list_variants
from chessreg.scheduling.presence import Presence
from chessreg.session import Session, open_session
from tui.data import launch_form
from tui.data.launch_form import Form, is_evaluated_on, list_candidates
from tui.model_process import ModelProcess
from tui.screens.job import JobScreen
from tui.screens.launch import FormScreen
from tui.widgets.fields import FieldInput

from .commands import command_of

TOY = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")


# -- forms, without a screen ------------------------------------------------------------------------------------------

SEVERAL = {"move-quality", "sae"}  # kinds that need one of several settings, none of them by itself


@pytest.mark.parametrize("name", sorted(load_kinds()))
def test_every_kind_has_a_form_with_every_setting_at_its_default(name: str) -> None:
    found = load_kinds()[name]
    form = Form(found, name)
    checked = form.check()
    needed = {tag} if (tag := find_variant_tag(found.spec)) else {one.key for one in form.fields if one.is_required}
    assert {key for key in checked.errors if checked.errors[key] == "it is required"} == needed
    assert set(checked.errors) == needed
    assert bool(checked.general) == (name in SEVERAL)
    command, _ = command_of(["chessreg", "launch", name])
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--" + one.path.replace("_", "-") for one in form.fields} <= options


VARIANTS = [(name, variant) for name, found in sorted(load_kinds().items()) for variant in list_variants(found.spec)]


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_variant_has_a_form_with_its_settings_alone(name: str, variant: str) -> None:
    found = load_kinds()[name]
    form = Form(found, name, {find_variant_tag(found.spec): variant})
    model = list_variants(found.spec)[variant]
    shown = {one.path.partition(".")[0] for one in form.fields if one.part == "spec"}
    assert shown == set(model.model_fields)
    needed = {one.key for one in form.fields if one.is_required} - {find_variant_tag(found.spec)}
    assert set(form.check().errors) == needed


@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        ("probe", {"cache": "c", "epochs": "0"}, {"epochs": "input should be greater than or equal to 1"}),
        ("probe", {"cache": "c", "skill.bins": "many"}, {"skill.bins": "valid integer"}),
        ("probe", {"cache": "c", "layers": "0,x"}, {"layers": "is not a list of ints"}),
        ("probe", {"cache": "c", "schedule": "steep"}, {"schedule": "one of linear, constant"}),
        ("probe", {"cache": "c", "normalize_activations": "perhaps"}, {"normalize_activations": "yes or no"}),
        ("probe", {"cache": "c", "launch.shards": "0"}, {"launch.shards": "greater than or equal to 1"}),
        ("probe", {"cache": "c", "launch.name": "abcdef"}, {"launch.name": "looks like an id"}),
        ("probe", {}, {"cache": "it is required"}),
        ("play", {"checkpoint": "m", "opponent": "deep-blue"}, {"opponent": "deep-blue"}),
        ("play", {"checkpoint": "m", "finished_openings": "keep"}, {"finished_openings": "has no effect"}),
    ],
)
def test_what_is_wrong_is_said_of_the_field(name: str, given: dict[str, str], wrong: dict[str, str]) -> None:
    checked = Form(find_kind(name), name, given).check()
    assert checked.errors.keys() == wrong.keys()
    for key, words in wrong.items():
        assert words in checked.errors[key]


def test_given_values_presets_and_defaults_are_told_apart() -> None:
    form = Form(find_kind("play"), "play", {"checkpoint": "mine", "games": "7"})
    form.preset = "paper"
    filled = find_kind("play").presets["paper"]
    assert form.source("games") == "given"
    (other,) = [name for name in filled if name != "games"][:1]
    assert form.source(other) == "preset"
    assert form.source("seed") == "default"
    spec = form.check().spec
    assert (spec.checkpoint, spec.games) == ("mine", 7)
    assert getattr(spec, other) == type(spec)(checkpoint="mine", **filled).model_dump()[other]
    form.set_text("games", None)
    assert form.check().spec.games == filled.get("games", type(spec).model_fields["games"].default)


def test_the_command_of_a_form_makes_the_same_order() -> None:
    given = {"cache": "fit", "layers": "0,2-3", "skill.bins": "4", "normalize_activations": "no", "threads": "2",
             "launch.name": "probe-x", "launch.shards": "3", "launch.share_gpu": "yes"}  # fmt: skip
    form = Form(find_kind("probe"), "probe", given)
    words = shlex.split(form.command())
    assert words[:3] == ["chessreg", "launch", "probe"]
    from chessreg.cli.launch import make_order
    from chessreg.cli.run import build_run_settings

    command, _ = command_of(["chessreg", "launch", "probe"])
    params = command.make_context("probe", words[3:]).params
    spec, how, sources = build_run_settings(find_kind("probe"), params)
    by_command = make_order(find_kind("probe"), spec, how, tuple(sorted(sources)), params["name"], params)
    from tui.data.launch_form import make_orders

    (order,) = make_orders(form, form.check())
    assert (order.spec, order.options, order.explicit) == (by_command.spec, by_command.options, by_command.explicit)
    assert (order.name, order.on, order.shards, order.share_gpu) == ("probe-x", "local", 3, True)
    assert (by_command.name, by_command.on, by_command.shards, by_command.share_gpu) == ("probe-x", "local", 3, True)


def test_a_number_that_a_preset_fills_is_taken_away_by_the_command_too() -> None:
    from chessreg.cli.run import build_run_settings

    form = Form(find_kind("probe"), "probe", {"cache": "fit", "last_sites": "none"})
    assert "--last-sites" not in form.build_arguments(), "it is none already"
    form.preset = "davis-paper"
    assert form.preset_values["last_sites"] is not None
    command, left = command_of(form.build_arguments())
    spec, _, sources = build_run_settings(find_kind("probe"), command.make_context("probe", left).params)
    assert (spec, tuple(sorted(sources))) == (form.check().spec, form.explicit_names)
    assert spec.last_sites is None
    form.set_text("alignment", "none")
    assert form.build_arguments()[-2:] == ["--alignment", "none"], "which the command refuses: it launches nothing else"


def test_what_may_be_picked_is_what_the_registry_has(session) -> None:
    values = [row["value"] for row in list_candidates(session, "dataset")]
    assert values == ["games:fit", "games:test", "games"]
    evaluated = [row["value"] for row in list_candidates(session, "dataset", evaluates=True)]
    assert evaluated == ["games:test", "games:fit", "games"]
    assert [is_evaluated_on(*of) for of in (("sae", "dataset"), ("sae", "heldout"), ("edit", "dataset"))] == [
        False, True, True,
    ]  # fmt: skip
    assert [row["value"] for row in list_candidates(session, "checkpoint")] == ["bigram"]
    assert [row["value"] for row in list_candidates(session, "run:cache")] == ["cache-fit", "cache-test"]
    assert [row["value"] for row in list_candidates(session, "run:cache", evaluates=True)] == [
        "cache-test",
        "cache-fit",
    ]
    assert [row["value"] for row in list_candidates(session, "run:probe")] == ["board"]
    assert [row["value"] for row in list_candidates(session, "run:cache", "fit complete")] == ["cache-fit"]
    assert [row["about"] for row in list_candidates(session, "dataset", "games:fit")] == ["13 games"]


# -- the form on the screen -------------------------------------------------------------------------------------------


async def typed(driver: Any, path: str, text: str) -> None:
    """Type a value into the field of this name."""
    screen = driver.screen
    assert isinstance(screen, FormScreen)
    screen.set_focus(next(row for row in screen.rows if row.field.path == path))
    await driver.press("e")
    assert isinstance(driver.app.focused, FieldInput)
    driver.app.focused.value = ""
    await driver.type(text)
    await driver.press("enter")


async def planned(driver: Any) -> str:
    """The screen, once the plan is shown."""
    screen = driver.screen
    assert isinstance(screen, FormScreen)
    await driver.once(lambda: not screen.form_check.is_valid or screen.outlook is not None)
    return driver.text


async def open_toy(driver: Any) -> None:
    await driver.go("launch")
    driver.screen.open(TOY, is_typed=True)
    await driver.settle()


async def test_a_form_is_filled_planned_and_launched_and_its_job_finishes(drive, tmp_path: Path) -> None:
    """The work of a researcher, on the real supervisor and a real worker."""
    folder = tmp_path / "project"
    folder.mkdir()
    async with drive(folder, size=(180, 45)) as driver:
        await open_toy(driver)
        await typed(driver, "positions", "0")
        assert "! input should be greater than or equal to 1" in driver.text
        assert "invalid: positions" in driver.text
        await typed(driver, "positions", "15")
        await typed(driver, "name", "checks")
        text = await planned(driver)
        assert "units     15" in text
        assert "rows      15 in score" in text
        assert "unknown: this kind has not run yet" in text
        assert driver.screen.command() == f"chessreg launch {TOY} --positions 15 --name checks"
        await driver.press("ctrl+l")
        assert isinstance(driver.screen, JobScreen)
        try:
            await driver.until("complete", "15/15 units")
            assert "100 % · 15/15 units" in driver.text
            await driver.press("escape")
            await driver.until("1 job · 0 running · 0 pending · 1 ended")
            (line,) = [line for line in driver.lines if " checks " in line]
            assert " complete " in line
            assert " 15/15 " in line
        finally:
            with open_session(str(folder / "registry.db"), folder / "store") as session:
                Presence(session.store).stop()
                with session.database.read() as sql:
                    (run,) = sql.scalars(select(tables.Run))
                    scores = len(sql.scalars(select(tables.Score)).all())
    assert (run.kind, run.spec["positions"], scores, run.explicit) == ("toy", 15, 15, ["positions"])


async def test_a_launch_on_a_locked_registry_is_told_as_not_done(drive, tmp_path: Path, monkeypatch: Any) -> None:
    def locked(*_: Any) -> Any:
        raise RegistryError("the registry is locked")

    async with drive(tmp_path, size=(120, 40)) as driver:
        await open_toy(driver)
        monkeypatch.setattr(launch_form, "queue_form", locked)
        await driver.press("ctrl+l")
        assert "not done: the registry is locked" in driver.notices
        assert "retried" not in driver.text
        assert isinstance(driver.screen, FormScreen)


async def test_a_second_key_while_it_is_launched_does_nothing(drive, tmp_path: Path, monkeypatch: Any) -> None:
    begun, go = [], threading.Event()

    def slow(session: Any, form: Form, checked: Any) -> Any:
        begun.append(form)
        go.wait(60)
        return None, "it is already complete"

    async with drive(tmp_path, size=(120, 40)) as driver:
        await open_toy(driver)
        monkeypatch.setattr(launch_form, "queue_form", slow)
        driver.screen.action_launch()
        while not begun:
            await asyncio.sleep(0.01)
        driver.screen.action_launch()
        go.set()
        await driver.settle()
        assert len(begun) == 1
        await driver.press("ctrl+l")
        assert len(begun) == 2, "once it has ended, it can be done again"


async def test_a_reference_is_picked_and_the_plan_follows(drive) -> None:
    async with drive(size=(160, 45), read_only=True) as driver:
        await driver.go("launch")
        await driver.find_row("Linear probes of the board")
        await driver.press("enter")
        screen = driver.screen
        assert isinstance(screen, FormScreen)
        assert "required: cache" in driver.text
        assert screen.row is not None
        assert screen.row.field.path == "cache"
        await driver.press("enter")
        assert "cache-test" in driver.text
        await driver.find_row("cache-fit")
        await driver.press("enter")
        assert screen.form.typed_texts == {"cache": "cache-fit"}
        text = await planned(driver)
        assert "ready" in text
        assert "from the nearest earlier run" in text
        await typed(driver, "test_cache", "caches/x")
        assert screen.form.typed_texts == {"cache": "cache-fit", "test_cache": "caches/x"}
        text = await planned(driver)
        assert "not found: test_cache" in text
        await driver.press("exclamation_mark")
        assert screen.row.field.path == "test_cache"
        await driver.press("u")
        assert screen.form.typed_texts == {"cache": "cache-fit"}


async def test_choices_turn_presets_fill_and_words_find(drive, tmp_path: Path) -> None:
    async with drive(tmp_path, size=(100, 40)) as driver:
        await driver.go("launch")
        await driver.find_row("Games of a model against")
        await driver.press("enter")
        screen = driver.screen
        assert isinstance(screen, FormScreen)
        await driver.press("slash")
        await driver.type("color")
        await driver.press("enter")
        assert screen.row.field.path == "color", "a setting of that name before those whose help has the word"
        await driver.press("space")
        assert screen.form.typed_texts == {"color": "black"}
        await driver.press("space")
        assert screen.form.typed_texts == {"color": "both"}
        await driver.press("space")
        assert screen.form.typed_texts == {}
        await driver.press("home", "slash")
        await driver.type("games")
        await driver.press("enter")
        assert screen.row.field.path == "games", "wherever one was"
        await driver.press("slash", "escape", "p")
        assert "[preset paper]" in driver.text
        assert screen.form.preset == "paper"
        assert any("preset" in line and "policy" not in line for line in driver.lines[2:])


async def test_the_form_has_the_settings_of_the_variant_that_is_chosen(drive, tmp_path: Path) -> None:
    def rows(screen: FormScreen) -> set[str]:
        return {row.field.path for row in screen.rows if row.field.part == "spec"}

    async with drive(tmp_path, size=(140, 45)) as driver:
        await driver.go("launch")
        await driver.find_row("Train a model from scratch")
        await driver.press("enter")
        screen = driver.screen
        assert isinstance(screen, FormScreen)
        assert screen.row.field.path == "architecture", "it is needed first"
        assert [row.field.path for row in screen.rows[:2]] == ["name", "architecture"]
        assert not {"attention", "packing"} & rows(screen)
        assert "required: architecture" in driver.text
        await driver.press("space")
        await driver.once(lambda: "packing" in rows(screen) and screen.row is not None)
        assert screen.form.typed_texts == {"architecture": "gpt2"}
        assert (screen.row.field.path, "attention" in rows(screen)) == ("architecture", False)
        await typed(driver, "block_size", "255")
        await driver.press(
            "home", "down", "space", "space"
        )  # below the name, and past gpt2-best-moves, while its rows come
        await driver.once(lambda: "attention" in rows(screen) and screen.row is not None)
        assert not {"packing", "block_size", "game_loss"} & rows(screen)
        assert "--block-size" not in screen.command()
        assert screen.row.field.path == "architecture"
        await driver.press("space", "space")  # past searchless-chess
        await driver.once(lambda: "packing" in rows(screen) and screen.row is not None)
        assert screen.command() == "chessreg launch train --architecture gpt2 --block-size 255"
        await driver.press("p", "p", "p")  # a preset fills in the tag, and the typed one takes precedence
        assert screen.form.variant == "gpt2"


async def test_enter_and_space_turn_to_the_next_executor(drive, tmp_path: Path) -> None:
    async with drive(tmp_path) as driver:
        await open_toy(driver)
        screen = driver.screen
        screen.set_focus(next(row for row in screen.rows if row.field.key == "launch.on"))
        for key, executor in (("enter", "slurm"), ("space", "ray"), ("left", "slurm"), ("left", "local")):
            await driver.press(key)
            assert screen.form.text("launch.on") == executor
        assert screen.form.typed_texts == {}


async def test_escape_takes_back_what_was_typed(drive, tmp_path: Path) -> None:
    async with drive(tmp_path) as driver:
        await open_toy(driver)
        screen = driver.screen
        await typed(driver, "plies", "20")
        await driver.press("enter", "9", "9")
        assert screen.form.typed_texts["plies"] == "99", "typing replaces the value"
        await driver.press("escape")
        assert screen.form.typed_texts == {"plies": "20"}
        await driver.press("u")
        assert screen.form.typed_texts == {}
        assert "› plies" in driver.text


@pytest.mark.slow
async def test_arrows_go_from_field_to_field_where_the_form_is_longer_than_the_screen(drive, tmp_path: Path) -> None:
    async with drive(tmp_path, size=(80, 24), start="launch") as driver:
        await driver.find_row("Linear probes of the board")
        await driver.press("enter", "home")
        screen = driver.screen
        assert isinstance(screen, FormScreen)
        for keys, place in ((["down", "down"], 2), (["pagedown"], 12), (["up"], 11), (["end"], len(screen.rows) - 1)):
            await driver.press(*keys)
            assert screen.row is screen.rows[place]
            assert f"› {screen.row.field.path}" in driver.text


@pytest.mark.slow
async def test_a_form_that_is_left_is_there_again_until_it_is_cleared(drive, tmp_path: Path) -> None:
    async with drive(tmp_path, size=(140, 40)) as driver:
        await driver.go("launch")
        await driver.find_row("Games of a model against")
        await driver.press("enter")
        await typed(driver, "move_limit", "7")
        await driver.press("p", "escape")
        assert any("play " in line and " 1 setting " in line for line in driver.lines)
        await driver.find_row("Games of a model against")
        await driver.press("enter")
        assert driver.screen.form.typed_texts == {"move_limit": "7"}
        assert driver.screen.form.preset == "paper"
        assert any(" move_limit " in line and " 7 " in line and " changed " in line for line in driver.lines)
        assert "[preset paper]" in driver.text
        assert driver.app.notices[-1].message.endswith("Z clears it")
        await driver.press("Z")
        assert "Clear 1 setting of this form?" in driver.text
        await driver.press("y", "escape")
        assert "1 setting" not in driver.text


@pytest.mark.slow
async def test_words_that_no_setting_has_leave_none_and_names_come_first(drive, tmp_path: Path) -> None:
    async with drive(tmp_path, size=(120, 40)) as driver:
        await driver.go("launch")
        await driver.press("slash")
        await driver.type("prob")
        await driver.press("enter")  # no kind of this name, and several that match: their list
        rows = [driver.screen.query_one("#kinds").row(n)["name"] for n in range(3)]
        assert rows[0] == "probe"
        assert all(name.startswith("probe") for name in rows)
        await driver.press("enter", "slash")
        await driver.type("zzz")
        await driver.press("enter")
        text = driver.text
        assert "no setting matches the filter; Esc clears it" in text
        assert "› " not in text.replace("launch › probe", "")
        await driver.press("escape")
        text = driver.text
        assert "no setting matches the filter" not in text
        assert driver.screen.form.kind.name == "probe"
        await driver.press("slash")
        assert driver.app.focused.value == "", "the words are gone, too"


def test_probes_of_the_chosen_model_are_offered_first(study: Session) -> None:
    every = [row["value"] for row in list_candidates(study, "run:probe")]
    for model, own in (("deep", ["deep-board"]), ("bigram", ["longer", "board"])):
        rows = [row["value"] for row in list_candidates(study, "run:probe", model=model)]
        assert rows[: len(own)] == own
        assert sorted(rows) == sorted(every)
    assert [row["value"] for row in list_candidates(study, "run:probe", model="no such model")] == every


@pytest.mark.parametrize(
    "size",
    [(80, 24), *(pytest.param(size, marks=pytest.mark.slow) for size in ((120, 40), (200, 60)))],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
async def test_what_a_value_is_stands_apart_from_the_help_beside_it(drive, tmp_path: Path, size: Any) -> None:
    async with drive(tmp_path, size=size, start="launch") as driver:
        driver.screen.open("probe")
        await driver.settle()
        lines = [line for line in driver.lines if " default" in line]
        assert len(lines) > 5
        assert not [line for line in lines if re.search(r"default\S", line)]


async def test_several_values_of_a_setting_are_a_sweep_and_its_cost_is_told(drive, world: Path) -> None:
    from chessreg.cli.launch import read_grid

    async with drive(world, size=(180, 45), read_only=True) as driver:
        await driver.go("launch")
        driver.screen.open("probe")
        await driver.settle()
        await typed(driver, "cache", "cache-fit")
        await typed(driver, "epochs", "1|2|x")
        assert "! is not a list" in driver.text or "invalid: epochs" in driver.text
        await typed(driver, "epochs", "1|2")
        await typed(driver, "seed", "0|1|2")
        await typed(driver, "name", "scan")
        text = await planned(driver)
        form, checked = driver.screen.form, driver.screen.form_check
        assert "runs      6, " in text
        assert "in all" in text
        grid = {"epochs": ["1", "2"], "seed": ["0", "1", "2"]}
        assert read_grid(form.kind, ["epochs=1|2", "--seed=0|1|2"]) == grid
        words = shlex.split(form.command())
        assert [words[n + 1] for n, word in enumerate(words) if word == "--grid"] == ["seed=0|1|2", "epochs=1|2"]
        from chessreg.cli.launch import make_sweep_orders
        from tui.data.launch_form import combine_plans, make_orders

        command, _ = command_of(words[:3])
        params = command.make_context("probe", words[3:]).params
        ours = [(order.spec, order.name) for order in make_orders(form, checked)]
        theirs = [(order.spec, order.name) for order in make_sweep_orders(form.kind, params)]
        assert sorted(ours, key=str) == sorted(theirs, key=str)
        assert len({name for _, name in ours}) == 6
        plan = driver.screen.outlook.plan
        told = combine_plans(
            [{**plan, "remarks": ["9e9 operations", "no GPU"]}, {**plan, "remarks": ["9e9 operations"]}]
        )
        assert told["remarks"] == ["each run: 9e9 operations", "no GPU"], "sums are of all, these are not"
        driver.screen.action_launch()
        await driver.settle()
        assert "Launch 6 runs?" in driver.text
        await driver.press("n")
        await typed(driver, "seed", "|".join(map(str, range(60))))
        assert "not ready  120 runs are more than a form can launch" in driver.text
        assert "(64); use --sweep with a file" in driver.text
        checks, check = [], form.check
        form.check = lambda: checks.append(1) or check()
        pasted = "|".join(map(str, range(100_000, 100_100)))
        row = next(row for row in driver.screen.rows if row.field.path == "seed")
        driver.screen.set_focus(row)
        await driver.press("e", "ctrl+u")
        await driver.type(pasted)
        assert form.typed_texts["seed"] == pasted
        assert len(checks) < len(pasted) / 2, "what is pasted is checked when it is whole"
        await driver.press("enter")
        assert "not ready  200 runs are more than a form can launch" in driver.text, "also where one leaves at once"
        assert "… y copies all of it" in driver.text


def test_a_grid_of_the_command_line_is_refused_in_one_line() -> None:
    from chessreg.cli.launch import read_grid
    from chessreg.errors import BadInputError

    for text, told in (
        ("color=1|2", "has no setting 'color'"), ("epochs", "it has no values"), ("schedule=linear|steep", "one of"),
        ("epochs=1|1", "twice"), ("epochs=", "it has no values"), ("epochs=1|", "it has no values"),
    ):  # fmt: skip
        with pytest.raises(BadInputError, match=told):
            read_grid(find_kind("probe"), [text])


def test_pickers_offer_the_starred_then_the_complete_then_the_newest(world: Path, tmp_path: Path) -> None:
    from chessreg.entities.checkpoint import register_random_init_control
    from chessreg.experiments.cache import CacheSpec
    from chessreg.registry import names

    shutil.copytree(world, tmp_path / "own")
    with open_session(str(tmp_path / "own" / "registry.db"), tmp_path / "own" / "store") as session:
        assert [row["value"] for row in list_candidates(session, "run:toy")] == ["toy", "cut"], "complete before newer"
        with session.database.write() as sql:
            names.add_annotation(sql, "run", session.id("run", "cut"), "star")
        assert [row["value"] for row in list_candidates(session, "run:toy")] == ["cut", "toy"]
        assert list_candidates(session, "run:toy")[0]["about"].startswith("★ toy")
        register_random_init_control(session.database, session.store, "bigram", name="untrained")
        spec = CacheSpec(checkpoint="untrained", dataset="games:test", games=1, max_sites=1)
        session.run(spec, name="newest")
        caches = list_candidates(session, "run:cache")
        assert [row["value"] for row in caches] == ["cache-fit", "cache-test", "newest"]
        assert caches[-1]["about"].endswith("of a random-init control")


@pytest.mark.slow
async def test_a_form_opens_the_run_that_is_complete_already(drive) -> None:
    from tui.screens.run import RunScreen

    async with drive(size=(180, 45)) as driver:
        await driver.go("launch")
        driver.screen.open("probe")
        await driver.settle()
        assert "v run" not in driver.lines[-1]
        for name, text in (("cache", "cache-fit"), ("test_cache", "cache-test"), ("epochs", "1")):
            await typed(driver, name, text)
        assert "already complete as board: v opens it" in await planned(driver)
        driver.screen.outlook = None  # launched before the plan is made
        await driver.press("ctrl+l")
        assert driver.notices.endswith("nothing was queued: board is complete; v opens it")
        driver.screen.pick(driver.screen.form.fields_by_key["cache"])
        await driver.settle()
        assert "existing probe" in driver.text
        assert {row["value"]: row["existing"] for row in driver.screen.query_one("#candidates").source_rows} == {
            "cache-fit": "board", "cache-test": "",
        }  # fmt: skip
        await driver.press("escape", "v")
        assert isinstance(driver.screen, RunScreen)
        assert "board" in driver.way


async def test_a_vector_has_its_scale_where_it_is_picked(drive, studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(self: ModelProcess, run: str) -> list[RelativeNorm]:
        assert len(run) == 32 or run == "skill"
        return [RelativeNorm(layer, 0.5, 100.0 + 20 * layer) for layer in range(3)]

    monkeypatch.setattr(ModelProcess, "measure_scales", measured)
    async with drive(studied, size=(100, 30)) as driver:
        await driver.go("launch")
        driver.screen.open("play")
        await driver.settle()
        await typed(driver, "checkpoint", "deep")
        await typed(driver, "intervention.vector", "skill")
        text = await planned(driver)
        assert "note: scale 1 adds 0.36 to 0.5 % of the residual stream's length" in text
        await typed(driver, "intervention.layers", "1")
        await typed(driver, "intervention.scale", "-2.5")
        text = " ".join(line.strip("│ ") for line in (await planned(driver)).splitlines())
        assert "scale -2.5 adds 1 % of the residual stream's length; scale 24 to 72 adds 10 to 30 %" in text
        await driver.press("u")
        assert "scale 24 to 72 adds 10 to 30 % of the residual stream at layer 1; also try" in driver.text
        driver.screen.give("intervention.vector", None)  # the other settings alone are refused
        await driver.settle()
        assert "not ready" in driver.text
        await driver.go("data")
        await driver.press("shift+tab", "shift+tab", "enter")
        await driver.until("intervention.scale 20 to 60 adds at most 10 to 30 %")
