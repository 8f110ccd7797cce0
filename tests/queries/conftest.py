"""A registry filled with rows whose tables are known beforehand."""

import itertools
import shutil
import struct
from datetime import UTC, datetime, timedelta

import pytest

from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_id, make_uuid
from chessreg.registry.names import add_annotation

START = datetime(2026, 1, 1, tzinfo=UTC)


class Maker:
    """Makes rows as the kinds of experiment emit them. Give it the relevant values; the rest is filled in."""

    def __init__(self, database):
        self.database = database
        self.count = itertools.count()

    def add(self, *rows):
        with self.database.write() as session:
            for _, alike in itertools.groupby(rows, type):
                session.add_all(alike)
                session.flush()
        return rows[0]

    def say(self, noun, id, word, value="", withdrawn=False):
        with self.database.write() as session:
            add_annotation(session, noun, id, word, value or ("wrong" if word == "invalid" else ""), withdrawn)

    def machine(self, host="box1"):
        found = make_uuid(hash_canonical_json(host))
        with self.database.read() as session:
            if session.get(tables.Machine, found):
                return found
        self.add(
            tables.Machine(
                id=found, host=host, platform="linux", cpu="x", cores=2, memory_bytes=1, gpus=[], python="3.11",
                last_seen=START,
            )
        )  # fmt: skip
        return found

    def checkpoint(
        self, name=None, *, source_format="nanogpt", parent_id=None, layers=8, d_model=192, heads=6, detail=None
    ):
        digest = hash_canonical_json([name, next(self.count)])
        self.tokenizer()
        artifact = tables.Artifact(digest=digest, kind="checkpoint", bytes=1, state="complete", created_at=START)
        row = tables.Checkpoint(
            id=make_uuid(digest), artifact=digest, architecture="gpt2", layers=layers, d_model=d_model,
            heads=heads, block_size=1023, tokenizer="pgn-char-32", parameters=3_700_000,
            parameters_without_embeddings=3_500_000, residual="raw", tokens_seen=None, training_datasets=None,
            source_format=source_format, parent_id=parent_id, run_id=None, detail=detail or {}, created_at=START,
        )  # fmt: skip
        self.add(artifact, row)
        if name:
            self.say("checkpoint", row.id, "name", name)
        return row

    def tokenizer(self):
        with self.database.read() as session:
            if session.get(tables.Tokenizer, "pgn-char-32"):
                return
        self.add(tables.Tokenizer(name="pgn-char-32", size=2, vocabulary=["a", "b"]))

    def run(self, kind, units, *, name=None, done=None, host="box1", days=0, checkpoint=None, spec=None,
            kind_version=1):  # fmt: skip
        """A run with one attempt; complete unless `done` is less than its units."""
        spec_hash = hash_canonical_json([kind, next(self.count)])
        done = units if done is None else done
        run = tables.Run(
            id=make_uuid(spec_hash), kind=kind, version=kind_version, spec=spec or {}, spec_hash=spec_hash,
            explicit=[], units=units, created_at=START + timedelta(days=days),
            completed_at=START if done == units else None,
        )  # fmt: skip
        attempt = self.attempt(run.id, host)
        self.add(run, attempt)
        if done:
            self.add(tables.UnitRange(run_id=run.id, start=0, stop=done, attempt_id=attempt.id))
        if checkpoint is not None:
            self.add(
                tables.RunInput(
                    run_id=run.id,
                    name="checkpoint",
                    reference=f"sha256:{checkpoint.artifact}",
                    digest=checkpoint.artifact,
                )
            )
        if name:
            self.say("run", run.id, "name", name)
        run.attempt_id = attempt.id
        return run

    def attempt(self, run_id, host="box1", state="finished"):
        return tables.Attempt(
            id=make_id(), run_id=run_id, machine_id=self.machine(host), executor="local", execution_options={}, argv=[],
            pid=1,
            pid_started=0.5, boot_id="b", started_at=START, checked_in_at=START, next_check_in_seconds=60.0,
            ended_at=START, state=state, cause="finished", chessreg_version="0", code={}, environment={},
        )  # fmt: skip

    def dataset(self, source, part=None):
        """A dataset and one part (name, seed, low, high) of it; returns its recipe."""
        digest = hash_canonical_json(["dataset", next(self.count)])
        artifact = tables.Artifact(digest=digest, kind="dataset", bytes=1, state="complete", created_at=START)
        row = tables.Dataset(
            id=make_uuid(digest), identity=digest, artifact=digest, source=source, games=3, plies=9,
            duplicates=0, rejected=0, skipped=0, report={}, created_at=START,
        )  # fmt: skip
        self.add(artifact, row)
        if part:
            name, seed, low, high = part
            self.add(
                tables.Split(dataset_id=row.id, name=name, seed=seed, low=low, high=high, games=2, created_at=START)
            )
        return f"dataset:{digest}"

    def engine(self, version="15.1"):
        id = make_uuid(hash_canonical_json(["engine", version]))
        with self.database.read() as session:
            if session.get(tables.Engine, id):
                return id
        self.add(tables.Engine(id=id, name="Stockfish", version=version, binary_sha256=None, options={}))
        return id

    def vector(self, checkpoint, source, of=None, layers=(3, 4, 5), seed=0):
        """A vector run, `of` another where it is a control; returns the run with its source."""
        spec = {"source": source.partition(":")[0], "of": of and f"run:{of.spec_hash}", "seed": seed}
        run = self.run("vector", len(layers), spec=spec)
        run.source = source
        digest = hash_canonical_json(["vector", next(self.count)])
        artifact = tables.Artifact(digest=digest, kind="vector", bytes=1, state="complete", created_at=START)
        rows = [
            tables.VectorRecord(
                run_id=run.id, unit=unit, artifact=digest, checkpoint_id=checkpoint.id, layer=layer, source=source,
                hook_point=f"blocks.{layer}.hook_resid_post", positions="dots", norm=1.0, detail={},
            )
            for unit, layer in enumerate(layers)
        ]  # fmt: skip
        self.add(artifact, *rows)
        return run

    def intervention(
        self, checkpoint, source="contrastive:skill", layers=(3, 4, 5), scale=0.1, token_mask="all", vector=None
    ):
        columns = [str(checkpoint.id), source, list(layers), scale, token_mask, next(self.count)]
        recipe = f"run:{vector.spec_hash}" if vector else "run:x/y"
        row = tables.Intervention(
            id=make_uuid(hash_canonical_json(columns)), checkpoint_id=checkpoint.id, source=source,
            input_references=[recipe], layers=list(layers), scale=scale, scale_rule="constant", token_mask=token_mask,
            detail={},
        )  # fmt: skip
        return self.add(row)

    def play(self, checkpoint, games, *, intervention=None, color="white", planned=None, opening="random:20",
             opening_seed=0, level=0, ladder=(), limit="nodes=1000", version="15.1", policy="retry:5", detail=None,
             kind="play", **run):  # fmt: skip
        """A play run; `games` are dicts of the relevant values of each (result, …), unit by unit; of a ladder of levels
        equally many on each. With color `both` White's and Black's take turns."""
        run = self.run(kind, planned or len(games), done=len(games), checkpoint=checkpoint, **run)
        levels, colors = ladder or (level,), ("white", "black") if color == "both" else (color,)
        arms, rung = [(level, color) for level in levels for color in colors], len(games) // len(levels)
        matches = [
            tables.Match(
                run_id=run.id, number=number, player="model", checkpoint_id=checkpoint.id,
                intervention_id=intervention.id if intervention else None, engine_id=self.engine(version),
                opponent=f"stockfish:{level}@{limit}", level=level, limit=limit, color=color, opening=opening,
                opening_seed=opening_seed, policy=policy, move_limit=90, detail=detail,
                planned=(planned or len(games)) // len(arms),
            )
            for number, (level, color) in enumerate(arms)
        ]  # fmt: skip
        for unit, game in enumerate(games):
            numbers = {"match": unit // rung * len(colors) + unit % len(colors),
                       "opening_number": unit % rung // len(colors)}  # fmt: skip
            matches.append(self.game(run, unit, **numbers | game))
        self.add(*matches)
        return run

    def game(self, run, unit, **given):
        columns = {
            "match": 0, "opening_number": unit, "opening_plies": 0, "plies": 40, "result": "1-0",
            "termination": "checkmate", "adjudication_cp": None, "turns": 20, "first_try_legal": 20,
            "tries": bytes([1] * 20), "moves": unit.to_bytes(2, "little"), "seconds": 0.1, "detail": None,
        }  # fmt: skip
        return tables.Game(run_id=run.id, unit=unit, attempt_id=run.attempt_id, **(columns | given))

    def cache(self, checkpoint, dataset, **settings):
        """A cache run of these games; returns its reference."""
        spec = {"checkpoint": f"sha256:{checkpoint.artifact}", "dataset": dataset, "games": 10000, "positions": "dots"}
        return f"run:{self.run('cache', 1, checkpoint=checkpoint, spec=spec | settings).spec_hash}"

    def probe(self, checkpoint, scores, *, label="piece", layers=(0, 1), positions="dots", detail=None, **run):
        """A probe run. `scores` maps (layer, split) to a list of (n, correct) or (n, correct, detail), one a game."""
        run = self.run("probe", len(layers), **run)
        digest = hash_canonical_json(["probe", next(self.count)])
        artifact = tables.Artifact(digest=digest, kind="probe", bytes=1, state="complete", created_at=START)
        rows = [
            tables.ProbeRecord(
                run_id=run.id, unit=unit, artifact=digest, checkpoint_id=checkpoint.id, layer=layer,
                hook_point=f"blocks.{layer}.hook_resid_post", label=label, positions=positions, classes=13,
                train_games=10, train_positions=330, epochs=5.0, norm=1.0, detail=detail or {},
            )
            for unit, layer in enumerate(layers)
        ]  # fmt: skip
        for (layer, split), games in scores.items():
            for item, (n, correct, *detail) in enumerate(games):
                rows.append(
                    tables.Score(
                        run_id=run.id, unit=layers.index(layer), split=split, item=item, attempt_id=run.attempt_id,
                        layer=layer, n=n, correct=correct, detail=detail[0] if detail else None,
                        counts=struct.pack("<6i", correct, n, n - correct, 0, n - correct, 0),
                    )
                )  # fmt: skip
        self.add(artifact, *rows)
        return run

    def edit(self, checkpoint, states, *, intervention=None, control=None, **run):
        """An edit run. `states` are (item, {condition: (legal_original, legal_modified, mass_o, mass_m)}): for each
        condition how many of five sampled texts were legal on either board, and the exact probabilities."""
        run = self.run("edit", len(states), checkpoint=checkpoint, **run)
        ids = {"clean": None, "edit": intervention and intervention.id, "random-0": control and control.id}
        rows = []
        for unit, (item, conditions) in enumerate(states):
            for condition, (original, modified, mass_original, mass_modified) in conditions.items():
                common = {"run_id": run.id, "unit": unit, "condition": condition, "item": item, "ply": 4,
                          "attempt_id": run.attempt_id, "intervention_id": ids[condition]}  # fmt: skip
                rows.append(
                    tables.Trial(
                        sample=-1, text="Nf3", fen=f"position {item}" if condition == "clean" else None,
                        legal_original=original > 0, legal_modified=modified > 0, mass_original=mass_original,
                        mass_modified=mass_modified, detail={"piece": "N"}, **common,
                    )
                )  # fmt: skip
                for sample in range(5):
                    rows.append(
                        tables.Trial(
                            sample=sample, text="Nf3", fen=None, legal_original=sample < original,
                            legal_modified=sample < modified, mass_original=None, mass_modified=None, detail=None,
                            **common,
                        )
                    )  # fmt: skip
        self.add(*rows)
        return run

    def legality(self, checkpoint, games, **run):
        """A legality run. `games` are lists of (legal, mass or None), one for each of White's turns."""
        run = self.run("legality", len(games), checkpoint=checkpoint, **run)
        rows = [
            tables.Trial(
                run_id=run.id, unit=unit, condition="clean", sample=-2 * turn - 1, attempt_id=run.attempt_id, item=unit,
                ply=2 * turn, fen=None, text="e4", legal_original=legal, mass_original=mass,
            )
            for unit, turns in enumerate(games)
            for turn, (legal, mass) in enumerate(turns)
        ]  # fmt: skip
        self.add(*rows)
        return run


@pytest.fixture
def database(tmp_path, empty_registry):
    shutil.copy(empty_registry, tmp_path / "registry.db")
    with Database.open(tmp_path / "registry.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def empty(empty_registry, tmp_path_factory):
    """A registry that holds nothing, and into which no test writes."""
    path = shutil.copy(empty_registry, tmp_path_factory.mktemp("empty"))
    with Database.open(path) as opened:
        yield opened


@pytest.fixture
def make(database):
    return Maker(database)
