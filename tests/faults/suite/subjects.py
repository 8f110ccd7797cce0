"""The work during which a fault strikes, in addition to the ledger: kinds that write arrays and files, and bytes in
transfer.

Each begins in a copy of one small world (games, a model, a cache, a folder that another machine pushed to), does
something with the same result whenever it is repeated, and is compared with a run without a fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger
from homes import Home

from chessreg.noise import generator
from chessreg.registry import tables
from chessreg.runs.spec import ExecutionOptions, Spec
from chessreg.session import open_session

SOURCE = f"{Path(ledger.__file__).resolve()}:Ledger"
DIFFERS = 1  # rows that the other registry of a merge has differently


@dataclass(frozen=True)
class Subject:
    """A piece of work in a home: `folders` are those that it writes into besides the store."""

    name: str
    work: Callable[[Home], None]
    prepare: Callable[[Home], None] = lambda home: None  # touches files alone
    folders: tuple[str, ...] = ()
    conflicts: int = 0  # that must be listed in the end


def build(home: Home) -> None:
    """The world: games, a model that never learnt, a cache, a second registry, and a folder with all bytes."""
    import numpy as np

    from chessreg.entities.adding import add_dataset
    from chessreg.entities.checkpoint import import_checkpoint
    from chessreg.entities.dataset import split_dataset
    from chessreg.experiments.cache import CacheSpec
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    np.seterr(all="ignore")
    there = home.folder
    (there / "games.pgn").write_text("".join(game(number) for number in range(14)))
    (there / "more.pgn").write_text("".join(game(number) for number in range(20, 30)))
    model = make_random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=16, block_size=255, vocab_size=32), seed=0)
    save_checkpoint(model, there / "model", CheckpointInfo.from_network(model, "pgn-char-32"))
    with home.open() as session:
        add_dataset(session.database, session.store, [there / "games.pgn"], name="sample")
        split_dataset(session.database, session.store, "sample", "fit=0.6,test=0.4", seed=0)
        import_checkpoint(session.database, session.store, there / "model", name="reference")
        session.run(CacheSpec(checkpoint="reference", dataset="sample:fit", max_sites=6), options("cache"), name="fit")
        session.run(ledger.LedgerSpec(seed=1, count=4), kind=SOURCE)
    push(home)
    with open_session(str(there / "other.db"), there / "other-store") as session:
        for seed in (1, 2):
            session.run(ledger.LedgerSpec(seed=seed, count=4), kind=SOURCE)
        with session.database.write() as sql:
            run = sql.query(tables.Run).filter(tables.Run.spec["seed"].as_integer() == 1).one()
            point = sql.query(tables.MetricPoint).filter_by(run_id=run.id, unit=1, step=0).one()
            point.value += 1


OPENINGS = {  # games that begin with one position by two orders of moves
    0: "d2d4 d7d5 g1f3 g8f6 c2c4", 1: "g1f3 g8f6 c2c4 d7d5 d2d4", 2: "e2e4 e7e5 g1f3 b8c6", 3: "g1f3 b8c6 e2e4 e7e5",
}  # fmt: skip


def game(number: int, plies: int = 24) -> str:
    """A PGN of random legal moves."""
    import chess
    import chess.pgn

    random, board = generator("faults world", number), chess.Board()
    found = chess.pgn.Game()
    found.headers.update({"WhiteElo": str(1000 + 40 * number), "BlackElo": "1500", "Result": "*"})
    node: chess.pgn.GameNode = found
    for move in map(chess.Move.from_uci, OPENINGS.get(number, "").split()):
        board.push(move)
        node = node.add_variation(move)
    while len(board.move_stack) < plies and not board.is_game_over():
        move = random.choice(list(board.legal_moves))
        board.push(move)
        node = node.add_variation(move)
    return f"{found}\n\n"


def options(kind: str) -> ExecutionOptions:
    """Small groups, and a state of the trainer after every step: many moments at which something can strike."""
    from chessreg.runs.kind import find_kind as of_name

    small = {
        "cache": {"group_games": 4, "batch_games": 1},
        "train": {"log_steps": 1, "checkpoint_seconds": 1e-6, "micro_tokens": 512},
        "sae": {"checkpoint_seconds": 1e-6},
        "markov": {"batch_games": 1, "group_classes": 1},
    }
    return of_name(kind).options(device="cpu", threads=1, **small.get(kind, {}))


def running(name: str, spec: Callable[[], Spec]) -> Callable[[Home], None]:
    def work(home: Home) -> None:
        with home.open() as session:
            session.run(spec(), options(name))

    return work


def of_cache() -> Spec:
    from chessreg.experiments.cache import CacheSpec

    return CacheSpec(checkpoint="reference", dataset="sample:test", max_sites=5)


def of_probe() -> Spec:
    from chessreg.experiments.probe import ProbeSpec

    return ProbeSpec(cache="fit", epochs=1)


def of_vector() -> Spec:
    from tests.specs import vector_spec

    return vector_spec(
        source="contrastive", cache="fit", first_ply=6, skill={"bins": 2, "keep": (0, -1), "strata": "pooled"}
    )


def of_train() -> Spec:
    from tests.specs import train_spec

    return train_spec(
        architecture="gpt2",
        datasets=("sample:fit",), n_layer=1, n_head=1, n_embd=16, block_size=127, steps=3, batch_tokens=512,
        warmup_steps=1,
    )  # fmt: skip


def of_sae() -> Spec:
    from chessreg.experiments.sae import SaeSpec

    return SaeSpec(cache="fit", expansions=(2,), tokens=256, batch_tokens=64, warmup_steps=1, boards=1)


def of_markov() -> Spec:
    from chessreg.experiments.markov import MarkovSpec

    return MarkovSpec(checkpoint="reference", dataset="sample", first_ply=3, last_ply=6, resamples=9)


def of_perplexity() -> Spec:
    from chessreg.experiments.perplexity import PerplexitySpec

    return PerplexitySpec(checkpoint="reference", dataset="sample:test")


def of_token_legality() -> Spec:
    from chessreg.experiments.token_legality import TokenLegalitySpec

    return TokenLegalitySpec(checkpoint="reference", dataset="sample:test")


def merge(home: Home) -> None:
    from chessreg.entities.merge import merge_source as merge_in

    with home.open() as session:
        merge_in(session.database, session.store, str(home.folder / "other.db"))


def push(home: Home) -> None:
    from chessreg.runs import transfer
    from store.places import open_place

    with home.open() as session:
        wanted = transfer.find_items(session.database, ["fit"], inputs=True)
        transfer.push_items(
            session.database, session.store, open_place(str(home.folder / "place"), create=True), wanted
        )


def no_place(home: Home) -> None:
    shutil.rmtree(home.folder / "place")


def pull(home: Home) -> None:
    from chessreg.runs import transfer
    from store.places import open_place

    with home.open() as session:
        wanted = transfer.find_items(session.database, ["fit"], inputs=True)
        transfer.pull_items(session.database, session.store, wanted, open_place(str(home.folder / "place")))


def no_bytes(home: Home) -> None:
    """Only rows are here, as after a merge."""
    for folder in ("artifacts", "arrays"):
        shutil.rmtree(home.folder / "store" / folder)
        (home.folder / "store" / folder).mkdir()


def add(home: Home) -> None:
    from chessreg.entities.adding import add_dataset

    with home.open() as session:
        add_dataset(session.database, session.store, [home.folder / "more.pgn"], name="more")


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("cache", running("cache", of_cache)),
        Subject("probe", running("probe", of_probe)),
        Subject("vector", running("vector", of_vector)),
        Subject("train", running("train", of_train)),
        Subject("sae", running("sae", of_sae)),
        Subject("markov", running("markov", of_markov)),
        Subject("perplexity", running("perplexity", of_perplexity)),
        Subject("token-legality", running("token-legality", of_token_legality)),
        Subject("merge", merge, conflicts=DIFFERS),
        Subject("push", push, no_place, ("place",)),
        Subject("pull", pull, no_bytes),
        Subject("dataset add", add),
    )
}


def facts(home: Home) -> dict[str, list[str]]:
    """The content of a home: its rows by table without clocks, attempts and random ids, and its bytes; leftovers are
    cleared."""
    import time

    from sqlalchemy import select

    from chessreg.entities import gc
    from store.arrays import ArrayGroup

    found: dict[str, list[str]] = {}
    with home.open() as session:
        with session.database.read() as sql:
            for name, table in tables.Base.metadata.tables.items():
                if name in LEFT_OUT:
                    continue
                rows = sql.execute(select(table)).mappings()
                plain = ({k: text(home, v) for k, v in row.items() if k not in CLOCKS} for row in rows)
                found[name] = sorted(str(row) for row in plain if name != "metric_point" or row["name"] not in TIMINGS)
            found["complete"] = [str(run.id) for run in sql.query(tables.Run).order_by("id") if run.completed_at]
            spans = sql.query(tables.UnitRange).all()
            found["unit_range"] = sorted(f"{s.run_id.hex}:{unit}" for s in spans for unit in range(s.start, s.stop))
        session.store.clean_staging(0)
        gc.move_to_bin(
            session.store, gc.find_unused(session.database, session.store, now=time.time() + 2 * gc.MIN_AGE_S)
        )
        found["artifacts"] = [session.store.verify(path.name).digest for path in paths(session.store.artifacts, "??/*")]
        found["arrays"] = []
        for path in paths(session.store.arrays, "*"):
            ArrayGroup(path).verify()
            found["arrays"].append(f"{path.name} {ArrayGroup(path).digest}")
        found["tmp"] = [path.name for path in paths(session.store.tmp, "*")]
    place = home.folder / "place"
    found["place"] = [str(p.relative_to(place)) for p in paths(place, "ar*/**/*") if p.is_file()]
    return found


LEFT_OUT = ("attempt", "fragment", "job", "machine", "registry_state", "run_input", "alembic_version")
TIMINGS = ("tokens_per_second", "train_seconds")
CLOCKS = (
    "id", "attempt_id", "seconds", "created_at", "completed_at", "verified_at", "environment", "code", "found_at", "at",
    "ingested_at", "machine_id", "row", "said_at",
)  # fmt: skip


def paths(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def text(home: Home, value: Any) -> str:
    return str(value).replace(str(home.folder), "HOME")
