"""The data room: datasets, checkpoints, caches, probes, vectors and SAEs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from textual.app import ComposeResult

from tui import gauge, show
from tui.actions import bindings
from tui.data import things
from tui.data.pages import Listed, Row
from tui.screens.saying import SaysWords
from tui.widgets.columns import Column
from tui.widgets.strip import PaneStrip
from tui.widgets.table import PageTable

NOUN = "data.noun"  # under which it is remembered what was looked at
TITLES = {"dataset": "datasets", "checkpoint": "checkpoints", "cache": "caches", "probe": "probes",
          "vector": "vectors", "sae": "SAEs"}  # fmt: skip
EMPTY = {
    "dataset": "no games yet: chessreg dataset add FILE.pgn --name games",
    "checkpoint": "no models yet: chessreg import checkpoint FILE --name model",
    "cache": "no activation caches yet: chessreg run cache --checkpoint MODEL --dataset GAMES",
    "probe": "no probes yet: chessreg run probe --cache CACHE",
    "vector": "no vectors yet: chessreg run vector --cache CACHE",
    "sae": "no SAEs: this version has a place for them, but no kind of run makes them",
}


def share(field: str, heading: str) -> Column:
    def text(row: Mapping[str, Any]) -> str:
        return "" if row[field] is None else f"{100 * row[field]:.2f} %"

    return Column(field, heading, right=True, text=text)


def size(row: Mapping[str, Any]) -> str:
    return gauge.size(row["bytes"])


def norm(row: Mapping[str, Any]) -> str:
    least, most = row["norm_least"], row["norm_most"]
    return f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"


def name(row: Mapping[str, Any]) -> str:
    """Its name; of a thing without one, in brackets, the run that made it."""
    called = row["name"] or (f"({row['made_by']})" if row.get("made_by") else "")
    return ("★ " if row["starred"] else "") + called + (" (invalid)" if row["invalid"] else "")


ID = Column("thing", "id", text=lambda row: show.short(row["thing"]))
NAME = Column("name", "name", text=name, widest=28, least=12)
TAGS = Column("tags", "tags", text=lambda row: " ".join(row["tags"]))
COLUMNS = {
    "dataset": (
        ID, NAME, Column("games", "games", True), Column("plies", "plies", True),
        Column("parts", "parts", text=lambda row: " ".join(row["parts"])), Column("duplicates", "duplicates", True),
        Column("rejected", "rejected", True), Column("skipped", "skipped", True), Column("rating_scale", "ratings"),
        Column("licence", "licence"), TAGS, Column("source", "source", widest=40),
    ),
    "checkpoint": (
        ID, NAME, Column("architecture", "architecture"), Column("layers", "layers", True),
        Column("d_model", "d model", True), Column("heads", "heads", True), Column("parameters", "parameters", True),
        Column("tokens_seen", "tokens seen", True), Column("twin_of", "twin of"), Column("made_by", "made by"),
        Column("residual", "residual"),
        Column("tokenizer", "tokenizer"), Column("source_format", "from"), TAGS,
    ),
    "cache": (
        ID, NAME, Column("checkpoint", "checkpoint"), Column("rows", "rows", True), Column("bytes", "size", True, size),
        Column("layers", "layers", True), Column("d_model", "d model", True), Column("dtype", "dtype"), TAGS,
    ),
    "probe": (
        ID, NAME, Column("model", "model"), Column("label", "label"), Column("layers", "layers", True),
        Column("best_layer", "best", True), share("validation_accuracy", "validation"), share("test_accuracy", "test"),
        Column("positions", "positions"), Column("train_games", "games", True), Column("epochs", "epochs", True), TAGS,
    ),
    "vector": (
        ID, NAME, Column("model", "model"), Column("source", "source"), Column("layers", "layers", True),
        Column("norm", "norm", True, norm), Column("positions", "positions"), Column("games", "games", True), TAGS,
    ),
    "sae": (
        ID, NAME, Column("checkpoint", "model"), Column("hook_point", "hook point"), Column("layer", "layer", True),
        Column("architecture", "architecture"), Column("features", "features", True), TAGS,
    ),
}  # fmt: skip


class DataScreen(SaysWords):
    """Tab goes from noun to noun. Enter opens a thing."""

    place = "data"
    crumb = "data"
    BINDINGS = bindings("data")

    noun = "dataset"
    rows: Mapping[str, list[Row]] | None = None
    _drawn = ""

    def body(self) -> ComposeResult:
        yield PaneStrip()
        yield PageTable(id="things")

    def on_mount(self) -> None:
        kept = self.desk_app.remembered.get(NOUN, self.noun)
        self.noun = kept if kept in things.NOUNS else self.noun

    async def fill(self) -> None:
        found = await self.ask("reading what there is", things.listed)
        if found is not None:
            self.rows = found
            self.draw()

    def draw(self) -> None:
        if self.rows is None:
            return
        strip, table = self.query_one(PaneStrip), self.query_one(PageTable)
        strip.names = tuple(f"{TITLES[noun]} {len(rows):,}" for noun, rows in self.rows.items())
        strip.place = things.NOUNS.index(self.noun)
        rows, table.empty = self.rows[self.noun], EMPTY[self.noun]
        table.show(Listed(rows), rows[:200], columns=COLUMNS[self.noun], keep=self._drawn == self.noun)
        self._drawn = self.noun

    def command(self) -> str:
        if self.noun == "sae":
            return 'chessreg query --sql "SELECT * FROM sae"'
        return f"chessreg {self.noun} list"

    # -- actions --------------------------------------------------------------------------------------------------

    def choose(self, place: int) -> None:
        self.noun = things.NOUNS[place % len(things.NOUNS)]
        self.desk_app.remembered.set(NOUN, self.noun)
        self.draw()

    def action_noun(self, way: str) -> None:
        self.choose(things.NOUNS.index(self.noun) + int(way))

    def on_pane_strip_chosen(self, event: PaneStrip.Chosen) -> None:
        self.choose(event.place)

    def chosen(self) -> tuple[str, dict[UUID, str]]:
        row = self.query_one(PageTable).current
        noun = "run" if self.noun in things.OF_RUNS else self.noun
        return noun, {} if row is None else {row["thing"]: label(row)}

    def action_lineage(self) -> None:
        from tui.screens.lineage import LineageScreen

        if (row := self.query_one(PageTable).current) is not None:
            noun, _ = self.chosen()
            maker = row.get("run_id")  # what a run made goes by the run
            root = ("run", maker) if maker else (noun, row["thing"])
            self.app.push_screen(LineageScreen(root[0], root[1].hex, label(row)))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        from tui.screens.thing import ThingScreen

        self.app.push_screen(ThingScreen(self.noun, event.row["thing"], label(event.row)))


def label(row: Row) -> str:
    return row["name"] or f"{row['noun']} {show.short(row['thing'])}"
