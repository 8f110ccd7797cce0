"""The lineage of an entity as a tree: its inputs, and the entities made from it."""

from __future__ import annotations

from uuid import UUID

from textual.app import ComposeResult
from textual.widgets import Static

from tui import show
from tui.actions import make_bindings
from tui.columns import TableColumn
from tui.data import lineage_tree
from tui.data.pages import ListPages, Pages, Row
from tui.data.table_filter import View
from tui.screens.base import AppScreen
from tui.widgets.table import PageTable

LINEAGE_DIRECTIONS = (("up", "down"), ("up",), ("down",))


def format_node(row: Row) -> str:
    """Return the label of a node: guide lines, the field that refers to it, its kind and name. Without guide lines,
    also whether it is among the inputs or the descendants."""
    field = f"{row['field']}: " if row["field"] not in ("", row["kind"]) else ""
    fold = "▸ " if row["below"] else ""
    way = "" if row["guide"] else f" ({row['way']})"
    return f"{row['guide']}{fold}{field}{row['kind']} {row['name'] or ''}".rstrip() + way


def format_node_state(row: Row) -> str:
    if row["below"]:
        return f"{row['below']} folded"
    return "as above" if row["again"] else "" if row["state"] == "complete" else str(row["state"])


def format_details(row: Row) -> str:
    """Return the settings of a run with its engines, or the files of a dataset or checkpoint."""
    from chessreg.entities.lineage_tree import list_details

    return ", ".join(filter(None, (row.get("settings"), *list_details(row))))


COLUMNS = (
    TableColumn("what", "lineage", text=format_node, widest=120, least=30, role="key"),
    TableColumn("short", "id", text=lambda row: show.abbreviate_id(row["id"][-6:])),
    TableColumn("state", "state", text=format_node_state),
    TableColumn("settings", "settings and files", text=format_details, widest=60, least=16),
    TableColumn("host", "machine", text=lambda row: show.format_host(row.get("host")), widest=20),
    TableColumn("created_at", "created", least=16, role="detail"),
)


class LineageScreen(AppScreen):
    """A tree of inputs and outputs.

    Enter opens a node, Space folds it, L makes it the root.
    """

    place = "lineage"
    BINDINGS = make_bindings("lineage")
    DEFAULT_CSS = """
    LineageScreen > #about { height: 1; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, noun: str, id: str, name: str) -> None:
        super().__init__()
        self.noun, self.id_hex, self.thing_name = noun, id, name
        self.crumb = f"lineage of {name}"
        self.ways: tuple[str, ...] = LINEAGE_DIRECTIONS[0]
        self.folded_keys: set[str] = set()
        self.trees: lineage_tree.Trees | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="about", markup=False)
        yield PageTable(COLUMNS, id="tree", title="Lineage")

    async def fill(self) -> None:
        noun, id = self.noun, self.id_hex
        trees = await self.ask(
            "following the lineage", lambda session: lineage_tree.build_lineage_trees(session, noun, id)
        )
        if trees is None:
            return
        keep_cursor, self.trees = self.trees is not None, trees
        up, down = (
            lineage_tree.count_distinct_descendants(trees.up),
            lineage_tree.count_distinct_descendants(trees.down),
        )
        self.query_one("#about", Static).update(
            f"{self.thing_name}: {show.format_count(up, 'input')}, {show.format_count(down, 'descendant')}"
        )
        self.draw(keep_cursor)

    def narrow_pages(self, all_pages: Pages, view: View) -> Pages:
        """Return the matching nodes as a flat list, because guide lines need their parents."""
        assert isinstance(all_pages, ListPages)
        return ListPages([{**row, "guide": ""} for row in all_pages.rows]).narrow(view)

    def draw(self, keep: bool = True) -> None:
        if self.trees is not None:
            rows = lineage_tree.list_tree_lines(self.trees, self.ways, self.folded_keys)
            self.query_one(PageTable).show(ListPages(rows), rows[:200], columns=COLUMNS, keep=keep)

    def command(self) -> str:
        way = f" --{self.ways[0]}" if len(self.ways) == 1 else ""
        return f"chessreg lineage {show.abbreviate_id(self.id_hex[-6:])}{way}"

    # -- actions --------------------------------------------------------------------------------------------------

    def action_way(self) -> None:
        self.ways = LINEAGE_DIRECTIONS[(LINEAGE_DIRECTIONS.index(self.ways) + 1) % len(LINEAGE_DIRECTIONS)]
        self.draw(keep=False)

    def action_fold(self) -> None:
        row = self.query_one(PageTable).current_row
        if row is not None and row["folds"]:
            self.folded_keys ^= {row["key"]}
            self.draw()

    def action_root(self) -> None:
        row = self.query_one(PageTable).current_row
        if row is not None and row["id"] != self.id_hex:
            self.app.push_screen(LineageScreen(row["noun"], row["id"], label_node(row)))

    def on_page_table_opened(self, event: PageTable.Opened) -> None:
        row = event.row
        if row["noun"] == "file" or row["state"] == "missing":
            self.on_page_table_inspected(PageTable.Inspected(event.table, event.place, row))
            return
        self.app.open(row["noun"], UUID(row["id"]), label_node(row))


def label_node(row: Row) -> str:
    return row["name"] or f"{row['kind']} {show.abbreviate_id(row['id'][-6:])}"
