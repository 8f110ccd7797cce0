"""What an installed package's noun can do, in a process of its own: a table cannot be taken out of one again.

PYTHONPATH=.:tests/entities python tests/entities/brought.py FOLDER: prints one JSON document of what each part of
chessreg knows of `lens`.
"""

import io
import json
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import EntryPoint
from pathlib import Path

import chessreg.entities
from chessreg.cli.root import run_command_line
from chessreg.entities import gc
from chessreg.entities.merge import merge
from chessreg.kinds import Kind, Spec
from chessreg.registry import lineage, names
from chessreg.session import Session, open_session
from tui.data import entity_rows


class LensSpec(Spec):
    layers: int = 2


class LensKind(Kind):
    """Fits nothing: writes a lens for each layer."""

    name = "lens"
    tables = ("score",)
    spec = LensSpec

    def units(self, spec, inputs):
        return spec.layers

    def run(self, task):
        for unit in task.units:
            with task.output(f"layer-{unit}", unit, "lens") as folder:
                (folder / "lens.txt").write_text(f"{unit} {MADE}")
            hook_point = f"blocks.{unit}.hook_resid_post"
            task.record("lens", run_id=task.run_id, unit=unit, artefact=task.last_output.digest, layer=unit,
                        hook_point=hook_point, loss=0.5 + unit)  # fmt: skip
            task.done(unit)


MADE = "here"


def opened(folder: Path) -> Session:
    session = open_session(str(folder / "registry.db"), folder / "store")
    table = chessreg.entities.entity("lens").table.__table__
    with session.database.write() as sql:
        table.create(sql.connection(), checkfirst=True)
    return session


def command(folder: Path, *words: str) -> object:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run_command_line([*words, "--registry", str(folder / "registry.db"), "--store", str(folder / "store")])
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


def later() -> float:
    """Two hours from now: what was written a moment ago is old enough to go."""
    return time.time() + 7200


def main(root: Path) -> None:
    point = EntryPoint("lens", "toy_entity:Lenses", chessreg.entities.GROUP)
    chessreg.entities.entry_points = lambda group: [point] if group == chessreg.entities.GROUP else []
    here, there = root / "here", root / "there"
    told: dict[str, object] = {}
    kind = f"{Path(__file__).resolve()}:LensKind"
    with opened(here) as session:
        run_id = session.run(LensSpec(), kind=kind, name="mine").run_id
    told["help"] = command(here, "--help")
    told["list"] = command(here, "lens", "list", "--json")
    told["table"] = command(here, "lens", "list")
    told["show"] = command(here, "lens", "show", "mine", "--layer", "1", "--json")
    told["several"] = command(here, "lens", "show", "mine")
    told["lineage"] = command(here, "lineage", "mine", "--json")
    sys.modules["chessreg_kind_brought"].MADE = "there"  # the same spec on another machine comes out otherwise
    with opened(there) as session:
        session.run(LensSpec(), kind=kind)
    with opened(here) as session:
        room = entity_rows.listed(session)
        told["room"] = {"nouns": list(room), "rows": [(row["name"], row["layers"]) for row in room["lens"]]}
        thing = entity_rows.thing(session, "lens", run_id)
        told["thing"] = {"summary": thing.summary, "parts": [part.name for part in thing.parts]}
        merged = merge(session.database, session.store, str(there / "registry.db"))
        told["merge"] = {"conflicts": merged.conflicts, "facts": merged.facts}
        told["needed"] = len(gc.find(session.database, session.store, now=later()))
        with session.database.write() as sql:
            names.annotate(sql, "lens", names.resolve(sql, "lens", "mine"), "archive")
            told["node"] = lineage.find(sql, "mine").noun
        told["rubbish"] = [item.what.split()[0] for item in gc.find(session.database, session.store, now=later())]
    with opened(root / "new") as session:
        merged = merge(session.database, session.store, str(here / "registry.db"))
        told["taken"] = merged.facts.get("lens")
    print(json.dumps(told, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
