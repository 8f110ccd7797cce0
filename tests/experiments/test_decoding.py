"""Teacher-forced and autoregressive answers: the definition of each mode, the counted answers, and the tables of
both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from chessreg.encodings.prompts import PromptEncoding, PromptSettings
from chessreg.errors import BadInputError
from chessreg.experiments.decoding import (
    AUTOREGRESSIVE,
    TEACHER_FORCED,
    DecodedAnswer,
    DecodingSpec,
    TargetMove,
    answer_positions,
    resolve_prompt_encoding,
)
from chessreg.experiments.finetune import FinetuneOptions, FinetuneSpec
from chessreg.models.decoding.policies import ModelTurn, choose_moves, make_policy
from chessreg.models.decoding.session import DecodingSession
from chessreg.queries.published import compare_with_published
from chessreg.registry import tables

HOW = FinetuneOptions(threads=1, log_steps=10, autocast=False)
SMALL: dict[str, Any] = {"family": "llama", "n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 400,
                         "datasets": ("puzzles",), "warmup_steps": 1, "batch_positions": 6,
                         "learning_rate": 1e-2}  # fmt: skip


@pytest.fixture(scope="module")
def pristine_world(solver_world: Path) -> Path:
    return solver_world


@pytest.fixture
def models(world_session: Any) -> dict[str, str]:
    """A model of initial weights, the same tuned a little, and a third tuned alike with the legal moves listed."""
    made = {}
    for name, settings in (
        ("start", {"steps": 0, "template": "junkin-small"}),
        ("tuned", {"steps": 25, "template": "junkin-small"}),
        ("listed", {"steps": 25, "template": "junkin-5"}),
    ):
        if name != "start":
            settings |= {key: value for key, value in SMALL.items() if key not in ("family",)}
            settings = {k: v for k, v in settings.items() if k not in ("n_layer", "n_head", "n_embd", "block_size")}
            spec = FinetuneSpec(**settings, checkpoint=made["start"])
        else:
            spec = FinetuneSpec(**{**SMALL, **settings})
        report = world_session.run(spec, HOW)
        with world_session.database.read() as sql:
            made[name] = sql.query(tables.Checkpoint).filter_by(run_id=report.run_id).one().id.hex
    return made


def rows_of(session: Any, run: Any) -> dict[str, dict[int, Any]]:
    with session.database.read() as sql:
        rows = sql.query(tables.Prediction).filter_by(run_id=run.run_id).all()
        sql.expunge_all()
    return {mode: {row.unit: row for row in rows if row.name == mode} for mode in (TEACHER_FORCED, AUTOREGRESSIVE)}


def test_both_modes_are_what_the_model_says_step_by_step(world_session: Any, models: dict[str, str]) -> None:
    """One pass against one per token: after the right tokens when teacher-forced, after its own otherwise, as the
    policy `free` writes."""
    model = world_session.model(models["tuned"])
    positions, _ = world_session.inputs.positions(world_session.inputs.reference("dataset", "puzzles"))
    known = positions.take(range(len(positions.rows(None))), ["fen", "best"]).to_pylist()
    targets = [TargetMove.from_uci(row["fen"], row["best"]) for row in known]
    written = model.encoding
    texts = set()
    for one, got in zip(targets, answer_positions(model, written, targets, False), strict=True):
        if one.board.fullmove_number > 999:
            assert got == {TEACHER_FORCED: None, AUTOREGRESSIVE: None}  # three digits hold it no more
            continue
        prompt, right = list(written.prompt(one.board)), written.answer(one.board, one.best)
        told, nats = [], 0.0
        for place, token in enumerate(right):
            logprobs = torch.log_softmax(model.logits(torch.tensor([prompt + list(right[:place])]))[0, -1], -1)
            told.append(int(logprobs.argmax()))
            nats -= float(logprobs[token])
        assert got[TEACHER_FORCED] is not None
        assert got[TEACHER_FORCED].ids == tuple(told[:-1])
        assert got[TEACHER_FORCED].ended == (told[-1] == right[-1])
        assert got[TEACHER_FORCED].nats == pytest.approx(nats, abs=1e-4)
        session = DecodingSession(model, 1)
        session.sync([prompt])
        [choice] = choose_moves(make_policy("free", (0.0,), False), session, written, [ModelTurn(0, one.board, ("t",))])
        assert got[AUTOREGRESSIVE] is not None
        assert got[AUTOREGRESSIVE].text == (choice.text if choice.move else choice.illegal[-1])
        texts.add(got[AUTOREGRESSIVE].text)
        [cut] = answer_positions(model, written, [one], True)
        assert cut[AUTOREGRESSIVE] is not None
        assert cut[AUTOREGRESSIVE].ids == got[AUTOREGRESSIVE].ids[: len(right) - 1]
    assert len(texts) > 1
    assert any(one.board.fullmove_number > 999 for one in targets)


@pytest.mark.parametrize(
    ("text", "notation", "expected"),
    [
        ("e2e4", "uci", {"valid": True, "legal": True, "first": False, "near": True}),
        ("e2e3", "uci", {"valid": True, "legal": True, "first": False, "near": True}),
        ("g1h3", "uci", {"valid": True, "legal": True, "first": True, "near": False}),
        ("e2e5", "uci", {"valid": True, "legal": False, "first": False, "near": True}),
        ("e2e4q", "uci", {"valid": False, "legal": False, "first": False, "near": True}),
        ("e2", "uci", {"valid": False, "legal": False, "first": False, "near": False}),
        ("e2e4 ", "uci", {"valid": False, "legal": False, "first": False, "near": True}),
        ("", "uci", {"valid": False, "legal": False, "first": False, "near": False}),
        ("e4", "san", {"valid": True, "legal": True, "first": False, "near": True}),
        ("Nh3", "san", {"valid": True, "legal": True, "first": True, "near": False}),
        ("Nf6", "san", {"valid": True, "legal": False, "first": False, "near": False}),
    ],
)
def test_a_text_counts_as_it_is(text: str, notation: Any, expected: dict[str, bool], tmp_path: Path) -> None:
    """The definitions of valid, legal, first and near; blanks are not stripped."""
    from chessreg.encodings.prompts import make_tokenizer

    written = PromptEncoding(make_tokenizer(tmp_path, has_merges=False), PromptSettings(notation=notation))
    ids = tuple(written._words.encode(text))
    found = DecodedAnswer(ids, text, True).columns(TargetMove(chess.Board(), chess.Move.from_uci("e2e4")), written)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.slow
def test_tables_show_modes_prompts_and_what_tuning_and_the_list_did(world_session: Any, models: dict[str, str]) -> None:
    runs = {
        name: world_session.run(DecodingSpec(checkpoint=models[model], dataset="puzzles", template=template))
        for name, model, template in (
            ("start", "start", None), ("tuned", "tuned", None), ("listed", "listed", None),
            ("other", "tuned", "junkin-2"),
        )
    }  # fmt: skip
    ids = [run.run_id.hex for run in runs.values()]
    rows = {name: rows_of(world_session, run) for name, run in runs.items()}
    shares = {
        name: {mode: 100 * sum(row.value for row in of.values()) / len(of) for mode, of in modes.items()}
        for name, modes in rows.items()
    }
    table = world_session.query("decoding modes", run=ids).rows
    by_run = {row["run_id"]: row for row in table if row["mode"] == AUTOREGRESSIVE}
    assert len(table) == 8
    for name, run in runs.items():
        row = by_run[run.run_id.hex]
        assert row["best"] == pytest.approx(shares[name][AUTOREGRESSIVE])
        assert row["delta_best"] == pytest.approx(shares[name][AUTOREGRESSIVE] - shares[name][TEACHER_FORCED])
    answer = world_session.query("prompt ablation", run=ids)
    ablation = {row["run_id"]: row for row in answer.rows}
    told = compare_with_published(world_session.database, answer).rows
    tuned_ones = {models[name][-6:] for name in ("tuned", "listed")}
    assert {row["model"][-6:] for row in told if row["row"] == "Llama" and row["ours"] is not None} == tuned_ones
    assert {row["ours"] for row in told if row["row"].startswith("Pythia")} == {None}, "these are Llamas"
    learned = compare_with_published(
        world_session.database, world_session.query("training settings"), ("Appendix D.3",)
    ).rows
    assert {row["model"][-6:] for row in learned if row["ours"] is not None} == tuned_ones
    assert {row["column"] for row in learned if row["ours"] is not None} == {"Llama"}
    tuned = ablation[runs["tuned"].run_id.hex]
    assert tuned["tuned_best"] == pytest.approx(shares["tuned"][AUTOREGRESSIVE] - shares["start"][AUTOREGRESSIVE])
    assert (tuned["prompt"], tuned["legal_list"], tuned["list_best"]) == ("junkin-small", False, None)
    listed = ablation[runs["listed"].run_id.hex]
    assert listed["list_best"] == pytest.approx(shares["listed"][AUTOREGRESSIVE] - shares["tuned"][AUTOREGRESSIVE])
    assert listed["tuned_best"] is None  # the model that it was tuned from was not asked so
    assert ablation[runs["other"].run_id.hex]["prompt"] == "junkin-2"
    assert ablation[runs["other"].run_id.hex]["list_best"] is None  # tuned without a list


def test_what_does_not_fit_has_no_value(world_session: Any, models: dict[str, str]) -> None:
    start = FinetuneSpec(**{**SMALL, "block_size": 200, "steps": 0, "template": "junkin-small"})
    run = world_session.run(start, HOW)
    with world_session.database.read() as sql:
        short = sql.query(tables.Checkpoint).filter_by(run_id=run.run_id).one().id.hex
    run = world_session.run(DecodingSpec(checkpoint=short, dataset="puzzles", template="{FEN}{LM}: {BM}"))
    rows = rows_of(world_session, run)[AUTOREGRESSIVE]
    values = [row.value for row in rows.values()]
    assert None in values
    assert any(value is not None for value in values)
    modes = world_session.query("decoding modes", run=run.run_id.hex).rows
    [row] = [row for row in modes if row["mode"] == AUTOREGRESSIVE]
    assert row["left_out"] == values.count(None)


def test_models_that_cannot_be_asked_so_are_refused(world_session: Any) -> None:
    for settings, message in (
        ({"checkpoint": "reference"}, "writes games"),
        ({"checkpoint": "fen", "template": "junkin-1"}, "--template needs a model of prompts"),
    ):
        with pytest.raises(BadInputError, match=message) as caught:
            world_session.run(DecodingSpec(dataset="puzzles", **settings))
        assert "\n" not in str(caught.value)
    with pytest.raises(BadInputError, match="games"):
        world_session.run(DecodingSpec(checkpoint="fen", dataset="sample:fit"))


def test_another_template_has_the_same_tokenizer(tmp_path: Path) -> None:
    from chessreg.encodings.prompts import make_tokenizer

    own = PromptEncoding(make_tokenizer(tmp_path, has_merges=True), PromptSettings("junkin-3", notation="san"))
    other = resolve_prompt_encoding(DecodingSpec(checkpoint="c", dataset="d", template="junkin-4"), own)
    assert isinstance(other, PromptEncoding)
    assert (other.settings.template_name, other.settings.notation) == ("junkin-4", "san")
    assert resolve_prompt_encoding(DecodingSpec(checkpoint="c", dataset="d"), own) is own


def test_samples_are_counted_by_their_edit_distance_from_the_greedy_answer(
    world_session: Any, models: dict[str, str]
) -> None:
    """At a temperature near 0 a sample is the greedy answer; the modes equal those of a run without samples."""
    common = {"checkpoint": models["tuned"], "dataset": "puzzles", "positions": 3}
    plain, cold, warm = (
        world_session.run(DecodingSpec(**common, **how))
        for how in ({}, {"samples": 4, "temperature": 1e-3}, {"samples": 4, "temperature": 3.0, "top_p": 1.0})
    )
    with world_session.database.read() as sql:
        rows = {
            run.run_id: sql.query(tables.Prediction).filter_by(run_id=run.run_id).all() for run in (plain, cold, warm)
        }
        sql.expunge_all()
    counts = {run: [(r.unit, r.name, r.value) for r in of if r.name.startswith("distance")] for run, of in rows.items()}
    assert counts[plain.run_id] == []
    assert sorted(counts[cold.run_id]) == [(unit, "distance 0", 4.0) for unit in range(3)]
    assert sum(value for _, _, value in counts[warm.run_id]) == 12
    assert any(name != "distance 0" for _, name, _ in counts[warm.run_id])
    table = world_session.query("edit distance of answers", run=warm.run_id.hex).rows
    assert sum(row["share"] for row in table) == pytest.approx(100)
    assert {(row["n"], row["temperature"], row["top_p"]) for row in table} == {(3, 3.0, 1.0)}
    without, beside_samples = (
        [(row["mode"], row["n"], row["best"]) for row in world_session.query("decoding modes", run=run.run_id.hex).rows]
        for run in (plain, warm)
    )
    assert without == beside_samples
