"""One thing of the registry in parts: what is known of it as tables, and charts by layer and by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from tui import gauge, show
from tui.data.chart import Chart, Panel, Point, Series
from tui.data.pages import Row
from tui.data.things import twin_of

if TYPE_CHECKING:
    from chessreg.session import Session

FACTS = (("what", "what", False), ("value", "value", False))
HIDDEN = ("detail", "report", "notes", "tags", "starred", "pinned", "archived", "training_datasets", "hook_points",
          "groups", "name")  # fmt: skip
BARS = 14  # cells of a bar in a table


class Part(NamedTuple):
    """A table (fields with headings, and whether they are numbers), a chart, or both: the chart below the table."""

    name: str
    fields: Sequence[tuple[str, str, bool]] = ()
    rows: Sequence[Row] = ()
    chart: Chart | None = None


class Thing(NamedTuple):
    summary: str
    said: str
    parts: list[Part]


def thing(session: Session, noun: str, id: UUID) -> Thing:
    """A dataset, checkpoint, cache, probe run, vector run or SAE run. Raises NotFoundError when it is not here."""
    return MAKERS[noun](session, id)


def facts(row: Row, more: dict[str, Any] | None = None) -> Part:
    """All that is known of it, a line each."""
    known = {k: v for k, v in {**row, **(more or {})}.items() if k not in HIDDEN and v is not None}
    return Part("facts", FACTS, [{"what": k.replace("_", " "), "value": show.full(v)} for k, v in known.items()])


def words_of(row: Row) -> str:
    """What is said of it."""
    parts = [
        "★ starred" if row["starred"] else "",
        f"tags {' '.join(row['tags'])}" if row["tags"] else "",
        f"invalid: {row['invalid']}" if row["invalid"] else "",
        f"note: {row['notes'][-1]}" if row["notes"] else "",
    ]
    return " · ".join(filter(None, parts))


def dataset(session: Session, id: UUID) -> Thing:
    from chessreg.entities import datasets
    from chessreg.errors import ChessregError
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    with session.database.read() as sql:
        row = listing.entity(sql, "dataset", tables.Dataset, id.hex)
        splits = sql.query(tables.Split).filter_by(dataset_id=id).order_by(tables.Split.created_at, tables.Split.low)
        parts = [listing.columns(split) for split in splits]
    report = row["report"]
    left_out = [{"why": "a game with these moves was there already", "how": "duplicate", "games": row["duplicates"]}]
    left_out += [{"why": why, "how": how, "games": number}
                 for how in ("rejected", "skipped") for why, number in report[how].items()]  # fmt: skip
    try:
        rejects: list[Any] = datasets.rejects(session.database, session.store, id.hex)
    except (ChessregError, OSError):  # its files are elsewhere
        rejects = []
    ratings = f"ratings of {row['rating_scale']}" if row["rating_scale"] else "no rating scale"
    size = f"{row['games']:,} games · {row['plies']:,} plies"
    return Thing(
        f"dataset · {size} · {ratings} · {row['licence'] or 'no licence told'}",
        words_of(row),
        [
            Part(f"parts {len(parts)}", (("name", "part", False), ("games", "games", True), ("seed", "seed", True),
                                         ("low", "from", True), ("high", "to", True)), parts),
            Part("left out", (("how", "as", False), ("games", "games", True), ("why", "why", False)), left_out),
            Part(f"rejects {len(rejects):,}", (("source", "source", False), ("row", "game", True),
                                               ("line", "line", True), ("ply", "ply", True),
                                               ("reason", "reason", False)), rejects),
            Part("files", (("name", "file", False), ("bytes", "bytes", True), ("sha256", "sha256", False)),
                 report["sources"]),
            facts(row),
        ],
    )  # fmt: skip


def checkpoint(session: Session, id: UUID) -> Thing:
    from chessreg.cli.checkpoint import described
    from chessreg.registry import names

    with session.database.read() as sql:
        row = described(sql, id.hex)
        twin = twin_of(row, names.names(sql, "checkpoint"))
    trained = row["trained_on"]
    more = {
        "trained_on": "not told" if trained is None else ", ".join(trained) or "nothing",
        "twin_of": twin,
        "first_try_legal": "no legality run yet" if row["first_try_legal"] is None else row["first_try_legal"],
    }
    legal = "" if row["first_try_legal"] is None else f"{100 * row['first_try_legal']:.1f} % legal at once"
    shape = f"{row['layers']} layers × {row['d_model']}" if row["layers"] else "no weights here"
    parts = [
        f"checkpoint · {row['architecture'] or row['source_format']}", shape,
        f"{row['parameters']:,} parameters" if row["parameters"] else "",
        f"{row['tokens_seen']:,} tokens seen" if row["tokens_seen"] is not None else "tokens seen: not told",
        f"untrained twin of {twin}" if twin else "", legal,
    ]  # fmt: skip
    return Thing(" · ".join(filter(None, parts)), words_of(row), [facts(row, more)])


def cache(session: Session, id: UUID) -> Thing:
    from chessreg.registry import read as listing

    with session.database.read() as sql:
        (row,) = listing.caches(sql, id.hex)
        said = listing.words(sql, "run").get(id, listing.NOTHING_SAID)
    stored, number = row["bytes"], len(row["hook_points"])
    layers = [{"layer": n, "hook_point": point, "values": row["rows"] * row["d_model"]}
              for n, point in enumerate(row["hook_points"])]  # fmt: skip
    groups = [{**group, "units": f"{group['start']:,} to {group['stop'] - 1:,}"} for group in row["groups"]]
    return Thing(
        f"cache of {row['checkpoint'] or 'an unnamed model'} · {row['rows']:,} rows × {row['d_model']} · "
        f"{show.counted(number, 'layer')} · {row['dtype']} · {gauge.size(stored)}",
        words_of(said),
        [
            Part(f"layers {number}", (("layer", "#", True), ("hook_point", "hook point", False),
                                      ("values", "values", True)), layers),
            Part(f"groups {len(groups)}", (("units", "units", False), ("rows", "rows", True), ("bytes", "bytes", True),
                                           ("path", "path", False), ("digest", "digest", False)), groups),
            facts(row),
        ],
    )  # fmt: skip


def probe(session: Session, id: UUID) -> Thing:
    from chessreg.cli.probe import with_model
    from chessreg.registry import read as listing

    with session.database.read() as sql:
        layers = with_model(listing.probes(sql, id.hex))
        said = listing.words(sql, "run").get(id, listing.NOTHING_SAID)
    best = max(layers, key=lambda row: (row["validation_accuracy"] or 0.0, -row["layer"]))
    classes, chosen = f1_by_class(session, id)
    accuracy = best["test_accuracy"]
    right = f" · best layer {best['layer']}" + (f": {100 * accuracy:.2f} % right in test" if accuracy else "")
    fields = (("layer", "layer", True), ("hook_point", "hook point", False), ("validation", "validation", True),
              ("test", "test", True), ("norm", "norm", True), ("epochs", "epochs", True),
              ("train_positions", "positions fitted", True))  # fmt: skip
    rows = [{**row, "validation": percent(row["validation_accuracy"]), "test": percent(row["test_accuracy"])}
            for row in layers]  # fmt: skip
    parts = [Part(f"layers {len(layers)}", fields, rows, by_layer(layers))]
    if classes:
        told = (("name", "class", False), ("f1", "F1", True), ("interval", "95 %", True), ("bar", "", False),
                ("true_positives", "right", True), ("false_positives", "wrong", True),
                ("false_negatives", "missed", True))  # fmt: skip
        parts.append(Part(f"F1 by class, layer {chosen}", told, classes))
    return Thing(
        f"probe of {best['label']} in {best['model']} · {best['positions']}{right}",
        words_of(said), [*parts, facts(best)],
    )  # fmt: skip


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def by_layer(layers: Sequence[Row]) -> Chart | None:
    """Accuracy by layer on validation and test games, as `chessreg probe list` has it."""
    series = []
    for split in ("validation", "test"):
        points = [Point(row["layer"], row[f"{split}_accuracy"], text=percent(row[f"{split}_accuracy"]))
                  for row in layers if row[f"{split}_accuracy"] is not None]  # fmt: skip
        if points:
            series.append(Series(split, tuple(points)))
    return Chart("accuracy by layer", "layer", "accuracy", (Panel("", tuple(series)),)) if series else None


def f1_by_class(session: Session, id: UUID) -> tuple[list[Row], int | None]:
    """The classes of the layer that validation games choose, with the F1 of query `probe f1 by class`; and that layer.

    Nothing of a run that is not complete, or has no classes.
    """
    result = session.query("probe f1 by class", run=id.hex)
    found: list[Row] = []
    for row in result.rows:
        low, high = row["f1_low"], row["f1_high"]
        known = row["f1"] is not None
        found.append({**row, "f1": f"{row['f1']:.4f}" if known else "", "bar": "█" * round(BARS * (row["f1"] or 0)),
                      "interval": f"{low:.4f} to {high:.4f}" if low is not None and high is not None else "",
                      "f1_value": row["f1"]})  # fmt: skip
    return found, found[0]["layer"] if found else None


def vector(session: Session, id: UUID) -> Thing:
    from chessreg.cli.vector import with_norms
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    with session.database.read() as sql:
        layers = with_norms(listing.made(sql, "vector", tables.Vector, id.hex))
        said = listing.words(sql, "run").get(id, listing.NOTHING_SAID)
    first = layers[0]
    fields = (("layer", "layer", True), ("hook_point", "hook point", False), ("norm", "norm", True),
              ("norm_high", "norm high", True), ("norm_low", "norm low", True), ("games", "games", True))  # fmt: skip
    near = cosines(session, id, [row["layer"] for row in layers])
    beside = (("layer", "layer", True), ("cosine", "cosine", True), ("name", "of", False), ("source", "source", False),
              ("norm", "norm", True))  # fmt: skip
    return Thing(
        f"{first['source']} vectors of {first['model']} · {first['positions']} · {show.counted(len(layers), 'layer')}",
        words_of(said),
        [
            Part(f"layers {len(layers)}", fields, layers, norms(layers)),
            Part(f"cosines {len(near)}", beside, near),
            facts(first),
        ],
    )


def norms(layers: Sequence[Row]) -> Chart:
    """Norms by layer, of the vectors and of their two sides."""
    series = []
    for name, label in (("norm", "vector"), ("norm_high", "high side"), ("norm_low", "low side")):
        points = [Point(row["layer"], row[name], text=f"{row[name]:.4g}") for row in layers if row[name] is not None]
        if points:
            series.append(Series(label, tuple(points)))
    return Chart("norm by layer", "layer", "norm", (Panel("", tuple(series)),))


def cosines(session: Session, id: UUID, layers: Sequence[int]) -> list[Row]:
    """Cosines with other vectors of the same model and layer, nearest first in each layer."""
    from chessreg.entities import vector as vectors
    from chessreg.errors import ChessregError

    inputs = session.inputs
    found: list[Row] = []
    for layer in layers:
        try:
            near = vectors.cosines(inputs, inputs.recipe("run:vector", id.hex), layer)
        except ChessregError:  # its file is elsewhere
            continue
        found += [{"layer": layer, **row, "name": row["name"] or show.short(row["run_id"]),
                   "cosine": f"{row['cosine']:+.4f}"} for row in near]  # fmt: skip
    return found


def sae(session: Session, id: UUID) -> Thing:
    from chessreg.registry import read as listing
    from chessreg.registry import tables

    with session.database.read() as sql:
        found = listing.made(sql, "sae", tables.Sae, id.hex)
        said = listing.words(sql, "run").get(id, listing.NOTHING_SAID)
    first = found[0]
    fields = (("hook_point", "hook point", False), ("layer", "layer", True), ("architecture", "architecture", False),
              ("features", "features", True))  # fmt: skip
    return Thing(f"SAEs of {first['checkpoint']} · {first['architecture']}", words_of(said),
                 [Part(f"SAEs {len(found)}", fields, found), facts(first)])  # fmt: skip


MAKERS: dict[str, Callable[[Session, UUID], Thing]] = {
    "dataset": dataset,
    "checkpoint": checkpoint,
    "cache": cache,
    "probe": probe,
    "vector": vector,
    "sae": sae,
}
