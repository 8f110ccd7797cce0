"""The data: datasets, checkpoints, caches, probes and other nouns, and the parts of one entity."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from chessreg.entities import load_entity
from chessreg.entities.display import Part, Thing, VerifyOutput
from chessreg.errors import ChessregError
from tui import show
from tui.actions import Action, make_bindings
from tui.columns import TableColumn
from tui.data import entity_rows
from tui.data.pages import ListPages, Row
from tui.screens.annotate import AnnotatingScreen
from tui.screens.base import INTERNAL_FIELDS, AppScreen, PartsScreen, collect_row_fields
from tui.screens.files import import_picked_file
from tui.screens.preview import PreviewingScreen, RowPreview, build_fields_table
from tui.widgets.bars import PaneStrip
from tui.widgets.chart import ChartView
from tui.widgets.table import PageTable

if TYPE_CHECKING:
    from chessreg.entities.base import Entity


IMPORT_COMMANDS = {  # noun → import command, accepted files, further options
    "dataset": (
        ("dataset", "add"), "games or positions: PGN, CSV, Parquet, .bag; also as .zst, .gz, .bz2, .zip",
        "--exclude DATASET --within DATASET --min-plies N --licence TEXT",
    ),
    "checkpoint": (
        ("import", "checkpoint"),
        "a model: nanoGPT, GPT-2, Lightning or TransformerLens (.pt, .ckpt, .pth, .safetensors), Maia-2 (.pt), "
        "searchless_chess (.npz, folder), ONNX (.onnx, folder), Hugging Face (folder). Space picks a folder.",
        "--encoding NAME: left out, found in the file, else pgn-char-32; --trained-on DATASET",
    ),
    "probe": (
        ("import", "probe"), "a saved probe: .pth, .pt or .safetensors",
        "--checkpoint NAME: the model that it reads; --layers N: its layer from 0; --label TEXT",
    ),
    "vector": (
        ("import", "vector"), "a steering vector: a tensor [d_model] as .npy, .pt or .safetensors, or a skill probe",
        "--checkpoint NAME: its model; --layers N: its layer from 0, required for a plain tensor; --label TEXT",
    ),
    "sae": (
        ("import", "sae"), "a saved SAE: a folder of SAELens or dictionary_learning (Space picks a folder)",
        "--checkpoint NAME: required, the model that it reads; --hook-points NAME: left out, from the folder",
    ),
}  # fmt: skip
NOUNS_OF_MODELS = ("probe", "vector", "sae")  # whose import names a model
NOUN_KEY = "data.noun"


def format_entity_name(row: Mapping[str, Any]) -> str:
    """Return the name of an entity, or the run that made it in brackets."""
    entity_name = row["name"] or (f"({row['made_by']})" if row.get("made_by") else "")
    return ("★ " if row["starred"] else "") + entity_name + (" (invalid)" if row["invalid"] else "")


ID = TableColumn("thing", "id", text=lambda row: show.abbreviate_id(row["thing"]))
NAME = TableColumn("name", "name", text=format_entity_name, widest=28, least=12)


class DataScreen(AnnotatingScreen, PreviewingScreen):
    """The entities of one noun. Tab selects the next noun. Enter opens an entity."""

    place = "data"
    crumb = "data"
    BINDINGS = make_bindings("data")

    noun = "dataset"
    rows: Mapping[str, list[Row]] | None = None
    _drawn_noun = ""

    def body(self) -> ComposeResult:
        yield PaneStrip()
        yield PageTable(id="things")

    def on_mount(self) -> None:
        self.entities: dict[str, Entity] = {}
        self.noun = self.app.saved_state.get(NOUN_KEY, self.noun)

    async def fill(self) -> None:
        answer = await self.ask(
            "reading the data", lambda session: (entity_rows.list_data_nouns(), entity_rows.list_entities(session))
        )
        if answer is not None:
            self.entities, self.rows = answer
            if self.noun not in self.entities:  # its package is no longer installed
                self.noun = next(iter(self.entities))
            self.draw()

    def draw(self) -> None:
        if self.rows is None:
            return
        strip, table = self.query_one(PaneStrip), self.query_one(PageTable)
        strip.names = tuple(f"{self.entities[noun].plural} {len(rows):,}" for noun, rows in self.rows.items())
        strip.place = list(self.entities).index(self.noun)
        rows, table.empty = self.rows[self.noun], self.entities[self.noun].none_yet
        if not self.app.read_only:
            table.empty += "; or A picks a file" if self.noun in IMPORT_COMMANDS else "; or 3 launches one"
        entity = self.entities[self.noun]
        columns = [NAME, ID, *entity_rows.make_entity_columns(entity.overview_columns or entity.columns, rows)]
        table.set_title(entity.plural)
        table.show(ListPages(rows), rows[:200], columns=columns, keep=self._drawn_noun == self.noun)
        self._drawn_noun = self.noun
        self.relabel()

    async def build_preview(self, row: Mapping[str, Any]) -> RowPreview | None:
        """Return the fields of the row, without its report (which `i` shows)."""
        facts = collect_row_fields(self.query_one(PageTable), row)
        visible_facts = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in facts.items()
            if not isinstance(value, dict) and name not in INTERNAL_FIELDS
        }
        return RowPreview(build_fields_table(visible_facts), title=str(row.get("name") or ""))

    def command(self) -> str:
        return f"chessreg {self.noun} list"

    # -- actions --------------------------------------------------------------------------------------------------

    def choose(self, place: int) -> None:
        self.noun = list(self.entities)[place % len(self.entities)]
        self.app.saved_state.set(NOUN_KEY, self.noun)
        self.draw()

    def action_noun(self, way: str) -> None:
        if (place := self.query_one(PaneStrip).step(int(way))) is not None:
            self.choose(place)

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)

    def get_selected_rows(self) -> tuple[str, dict[UUID, str]]:
        if (row := self.query_one(PageTable).current_row) is None:
            return self.noun, {}
        return "run" if self.entities[self.noun].is_made_by_runs else self.noun, {row["thing"]: label_entity(row)}

    def can_offer(self, action: Action) -> bool:
        if action.place == "data" and action.method == "add":
            return self.noun in IMPORT_COMMANDS and super().can_offer(action)
        if action.place == "data" and action.method in ("split", "rows"):
            return self.noun == "dataset" and bool(self.get_selected_rows()[1]) and super().can_offer(action)
        return super().can_offer(action)

    def action_add(self) -> None:
        if self.noun in IMPORT_COMMANDS and not self.app.read_only:
            import_picked_file(self, *IMPORT_COMMANDS[self.noun], self.offered_checkpoint)

    @property
    def offered_checkpoint(self) -> str:
        """The option that names the newest trained model, for an import that belongs to a model."""
        models = self.rows["checkpoint"] if self.rows is not None and self.noun in NOUNS_OF_MODELS else ()
        trained_models = [row for row in models if not row["twin_of"]]
        return f"--checkpoint {shlex.quote(label_entity(trained_models[-1]).split()[-1])}" if trained_models else ""

    def action_rows(self) -> None:
        _, selected_rows = self.get_selected_rows()
        if self.noun == "dataset" and selected_rows:
            id, dataset_name = next(iter(selected_rows.items()))
            show_dataset_rows(self, id, dataset_name)

    def action_split(self) -> None:
        from tui.screens.dialogs import Prompt

        _, selected_rows = self.get_selected_rows()
        if self.noun != "dataset" or not selected_rows or self.app.read_only:
            return
        id, dataset_name = next(iter(selected_rows.items()))

        draft = "split", id

        def split_dataset(parts: str | None) -> None:
            if parts:
                words = ["dataset", "split", dataset_name, "--parts", parts]
                exact = ["dataset", "split", id.hex, "--parts", parts]
                drop_draft = partial(self.app.drop_draft, draft, parts)
                self.app.run_command(words, exact, "splitting", "split", f"{dataset_name}: {parts}", drop_draft)

        hint = "A seeded hash of the moves selects the part. The shares add up to 1. Enter confirms, Esc cancels."
        self.app.push_screen(
            Prompt(f"Split {dataset_name} into parts:", "fit=0.8,test=0.2", hint, draft), split_dataset
        )

    def action_lineage(self) -> None:
        if (row := self.query_one(PageTable).current_row) is not None:
            noun, _ = self.get_selected_rows()
            maker = row.get("run_id")  # an output is identified by its run
            root = ("run", maker) if maker else (noun, row["thing"])
            self.app.open_lineage(root[0], root[1].hex, label_entity(row))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        self.app.push_screen(ThingScreen(self.noun, event.row["thing"], label_entity(event.row)))


def label_entity(row: Row) -> str:
    return row["name"] or f"{row['noun']} {show.abbreviate_id(row['thing'])}"


class ThingScreen(AnnotatingScreen, PartsScreen):
    """The parts of one entity.

    Tab selects the next part. Enter shows all fields of a row, or opens its boards or its run.
    """

    place = "thing"
    BINDINGS = make_bindings("thing")
    DEFAULT_CSS = """
    ThingScreen > #summary { height: auto; max-height: 4; padding: 0 1; }
    ThingScreen > #chart { display: none; height: 1fr; min-height: 12; }
    ThingScreen.-chart > #chart { display: block; }
    ThingScreen.-chart > PageTable { height: auto; max-height: 40%; }
    """

    def __init__(self, noun: str, id: UUID, name: str) -> None:
        super().__init__()
        self.noun, self.thing_id, self.crumb = noun, id, f"{noun} {name}"
        self.entity = load_entity(noun)
        self.thing_name = name
        self.thing: Thing | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="summary", markup=False)
        yield PaneStrip()
        yield PageTable(id="part", empty="none")
        with VerticalScroll(id="chart", can_focus=False):
            yield ChartView()

    async def fill(self) -> None:
        noun, id = self.noun, self.thing_id
        details = await self.ask(f"reading the {noun}", lambda session: entity_rows.load_details(session, noun, id))
        if details is None:
            return
        keep_cursor, self.thing = self.thing is not None, details
        self.query_one("#summary", Static).update("\n".join(filter(None, [details.summary, details.annotations])))
        if noun == "vector" and not keep_cursor:
            self.run_exclusive(self.measure_scales, "scales")
        strip = self.query_one(PaneStrip)
        strip.names = tuple(part.name for part in details.parts)
        strip.place = min(strip.place, len(strip.names) - 1)
        self.show_part(keep_cursor)

    legend = ""  # of a vector: the scales to start with

    async def measure_scales(self) -> None:
        """Show the scales to start with, if the model's residuals can be measured."""
        from tui.widgets.fields import format_scales_to_try

        with suppress(ChessregError):
            if norms := await self.app.model.measure_scales(self.thing_id.hex):
                self.legend = f"intervention.{format_scales_to_try(norms)}"
        self.require_shown()
        self.show_part(keep=True)

    @property
    def part(self) -> Part | None:
        return self.thing.parts[self.query_one(PaneStrip).place] if self.thing else None

    def show_part(self, keep: bool = False) -> None:
        if (part := self.part) is None:
            return
        columns = [replace(column, widest=90) for column in entity_rows.make_entity_columns(part.columns, part.rows)]
        title = part.name.removesuffix(f" {len(part.rows):,}")  # the table adds it
        self.query_one(PageTable).set_title(title, self.legend if title == "layers" else "")
        self.query_one(PageTable).show(ListPages(part.rows), part.rows[:200], columns=columns, keep=keep)
        self.set_class(part.chart is not None, "-chart")
        if part.chart is not None:
            self.query_one(ChartView).show(part.chart)

    def command(self) -> str:
        if self.entity.is_made_per_unit:
            return f"chessreg {self.noun} list --run {show.abbreviate_id(self.thing_id)}"
        return f"chessreg {self.noun} show {show.abbreviate_id(self.thing_id)}"

    def can_offer(self, action: Action) -> bool:
        if action.place == "thing" and action.method == "rows":
            return self.noun == "dataset" and super().can_offer(action)
        return super().can_offer(action) and (action.method != "verify" or self.entity.verify is not None)

    # -- actions --------------------------------------------------------------------------------------------------

    def get_selected_rows(self) -> tuple[str, dict[UUID, str]]:
        return "run" if self.entity.is_made_by_runs else self.noun, {self.thing_id: self.thing_name}

    def action_lineage(self) -> None:
        noun, _ = self.get_selected_rows()
        self.app.open_lineage(noun, self.thing_id.hex, self.thing_name)

    def action_rows(self) -> None:
        if self.noun == "dataset":
            show_dataset_rows(self, self.thing_id, self.thing_name)

    def action_verify(self) -> None:
        if self.entity.verify is not None:
            self.verify()

    @work(group="verify", exclusive=True)
    async def verify(self) -> None:
        """Read the files again and report the outcome. The screen stays usable meanwhile."""
        id, verify = self.thing_id, self.entity.verify
        assert verify is not None
        result = await self.ask(
            f"verifying {self.thing_name}", lambda session: check_verification(verify(session, id.hex), self.noun)
        )
        if result is not None:
            self.notify(result, title=self.thing_name)

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        made_by = event.row.get("run_id")
        if event.row.get("result_table") and event.table.source is not None:
            from tui.screens.boards import BoardScreen

            self.app.push_screen(BoardScreen(event.table.source, event.place, event.row))
        elif made_by is not None and UUID(str(made_by)) != self.thing_id:
            self.app.push_screen(ThingScreen(self.noun, UUID(str(made_by)), str(event.row["name"])))
        else:
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, event.row))


def show_dataset_rows(screen: AppScreen, dataset_id: UUID, name: str) -> None:
    """Show the games or positions of a dataset.

    The breadcrumb includes the name, unless `screen` already shows it.
    """
    from tui.screens.boards import DatasetRowsScreen

    rows = DatasetRowsScreen(dataset_id)
    rows.crumb = rows.crumb if isinstance(screen, ThingScreen) else f"{name} {rows.crumb}"
    screen.app.push_screen(rows)


def check_verification(output: VerifyOutput, noun: str) -> str:
    """Return the outcome in words.

    Raises: ChessregError if the check found a problem.
    """
    if output.problems:
        raise ChessregError(f"the {noun} does not match its report: {output.problems[0]}", f"chessreg {noun} verify")
    return output.outcome
