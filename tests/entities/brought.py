"""The output of the front ends and the library for an installed package's noun, in a process that imported nothing from
it.

python tests/entities/brought.py HERE THERE NEW: prints one JSON document. These are folders with a registry each.
"""

import json
import sys
import time
from pathlib import Path

from chessreg.entities import gc
from chessreg.entities.merge import merge_source
from chessreg.registry import lineage, names
from chessreg.session import Session, open_session
from tui.data import entity_rows


def opened(folder: Path) -> Session:
    return open_session(str(folder / "registry.db"), folder / "store")


def later() -> float:
    """Two hours from now, when files written a moment ago are old enough to remove."""
    return time.time() + 7200


def main(here: Path, there: Path, new: Path) -> None:
    told: dict[str, object] = {}
    with opened(here) as session:
        told["needed"] = len(gc.find_unused(session.database, session.store, now=later()))
        with session.database.write() as sql:
            run_id = names.resolve_id(sql, "lens", "mine")
            names.add_annotation(sql, "lens", run_id, "archive")
            told["node"] = lineage.find_node(sql, "mine").noun
        told["rubbish"] = [
            item.what.split()[0] for item in gc.find_unused(session.database, session.store, now=later())
        ]
        with session.database.write() as sql:
            names.add_annotation(sql, "lens", run_id, "archive", withdrawn=True)
        room = entity_rows.list_entities(session)
        told["room"] = {"nouns": list(room), "rows": [(row["name"], row["layers"]) for row in room["lens"]]}
        thing = entity_rows.load_details(session, "lens", run_id)
        told["thing"] = {"summary": thing.summary, "parts": [part.name for part in thing.parts]}
        merged = merge_source(session.database, session.store, str(there / "registry.db"))
        told["merge"] = {"conflicts": merged.conflicts, "facts": merged.facts}
    with opened(new) as session:
        merged = merge_source(session.database, session.store, str(here / "registry.db"))
        told["taken"] = merged.facts.get("lens")
    print(json.dumps(told, default=str))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
