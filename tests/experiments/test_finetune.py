"""Fine-tuning on prompts: the loss of answers alone, LoRA, killing and resuming, and refusals in one line."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chessreg.encodings.prompts import TEMPLATES, PromptEncoding, PromptSettings, make_tokenizer
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments.finetune import FinetuneOptions, FinetuneSpec, check_tunable
from chessreg.models.corpus import IGNORED_LABEL
from chessreg.models.finetuning import FinetuneConfig, Finetuner, PromptCorpus
from chessreg.models.ranks import run_ranks
from chessreg.models.training import TrainerOptions
from chessreg.registry import tables
from chessreg.runs.spec import get_hashed_settings
from tests.language_models import bring_in
from tests.quick import quick_first

SMALL: dict[str, Any] = {"family": "llama", "n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 128,
                         "template": "junkin-small", "warmup_steps": 2}  # fmt: skip
HOW = FinetuneOptions(threads=1, log_steps=10, autocast=False)
FENS = [chess.STARTING_FEN, "8/8/4k3/8/8/4K3/4P3/8 w - - 0 1", "5k2/P4ppp/8/8/8/8/8/6K1 w - - 0 41"]
MOVES = ["e2e4", "e3d4", "a7a8q"]
EXACT = TrainerOptions(autocast=False, log_steps=1)


@pytest.fixture(scope="module")
def pristine_world(solver_world: Path) -> Path:
    """With the dataset `puzzles`: six positions and their best moves."""
    return solver_world


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tokenizer(tmp_path_factory.mktemp("words"), has_merges=True)


def corpus(words: Any, block_size: int = 512, **settings: Any) -> PromptCorpus:
    return PromptCorpus(PromptEncoding(words, PromptSettings(**settings)), FENS, MOVES, block_size)


def tuner(
    folder: Path,
    made: PromptCorpus,
    begins: Path | None = None,
    options: TrainerOptions = EXACT,
    **settings: Any,
) -> Finetuner:
    defaults: dict[str, Any] = {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": made.block_size, "steps": 6}
    defaults |= {"warmup_steps": 1, "learning_rate": 1e-2, "batch_positions": 2, "vocab_size": made.encoding.size}
    config = FinetuneConfig(**(defaults | settings))
    return Finetuner(config, made, folder, options, begins)


def test_labels_are_the_answer_and_its_end_alone(words: Any) -> None:
    """Prompts of unequal length, padded on the right; EOT is supervised, the prompt is not."""
    made = corpus(words, template="junkin-1", notation="san")
    [(inputs, labels)] = made.batches([0, 1, 2], 10_000)
    supervised = [row[row != IGNORED_LABEL].tolist() for row in labels]
    assert sorted(words.decode(row) for row in supervised) == ["Kd4", "a8=Q+", "e4"]
    assert all(row[-1] == words.end for row in supervised)
    for row, answer in zip(range(3), supervised, strict=True):
        first = int((labels[row] != IGNORED_LABEL).nonzero()[0, 0])
        prompt = words.decode(inputs[row, : first + 1].tolist())
        assert prompt.endswith("Best move: ")
        assert inputs[row, first + 1 : first + len(answer)].tolist() == answer[:-1]
    every = PromptCorpus(made.encoding, FENS, MOVES, 512, trains_on_prompts=True)
    [(same, told)] = every.batches([0, 1, 2], 10_000)
    assert torch.equal(same, inputs)
    for row, length in enumerate(sorted(len(ids) for ids, _ in made.rows([0, 1, 2]))):  # all but bos and padding
        assert torch.equal(told[row, : length - 2], inputs[row, 1 : length - 1])
        assert told[row, length - 2] == words.end
        assert (told[row, length - 1 :] == IGNORED_LABEL).all()
    portions = made.batches([0, 1, 2], 300)
    assert len(portions) > 1
    assert sum(len(part) for part, _ in portions) == 3


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_the_loss_is_the_mean_over_the_tokens_of_a_batch_s_answers(family: str, words: Any, tmp_path: Path) -> None:
    """Not over moves: of promotions one token more counts. The library's own logits say the same, row by row."""
    made = corpus(words, template="junkin-5")
    trainer = tuner(tmp_path, made, family=family, batch_positions=3, learning_rate=1e-9)
    hf, summed, count = trainer.model.hf, 0.0, 0
    for row, prompt in made.rows([0, 1, 2]):
        with torch.no_grad():
            logits = hf(torch.from_numpy(row[None].astype(np.int64))).logits[0]
        summed += float(
            F.cross_entropy(logits[prompt - 1 : -1], torch.from_numpy(row[prompt:]).long(), reduction="sum")
        )
        count += len(row) - prompt
    loss, accuracy = trainer.measure_heldout(made)
    assert loss == pytest.approx(summed / count, abs=1e-5)
    assert float(trainer.train_step(trainer.model)) == pytest.approx(summed / count, abs=1e-5)
    assert (trainer.tokens_seen, count, accuracy) == (16, 16, 0.0)


@pytest.mark.parametrize(
    ("family", "lora", "fsdp"),
    quick_first(
        1,
        [("llama", 0, False), ("llama", 0, True), ("llama", 4, False), ("llama", 4, True), ("gpt_neox", 0, True)],
    ),
)
def test_two_processes_tune_as_one_and_each_encodes_its_share(
    family: str, lora: int, fsdp: bool, words: Any, tmp_path: Path
) -> None:
    """A batch of three positions, of which one may not fit, with portions of one row."""
    if lora:
        pytest.importorskip("peft")
    curves, counts = [], []
    room = max(len(row) for row, _ in corpus(words).rows([0, 1, 2])) - 2
    settings: dict[str, Any] = {"batch_positions": 3, "lora_rank": lora, "family": family}
    how = {1: EXACT, 2: replace(EXACT, fsdp=fsdp)}
    for devices in (1, 2):
        trainer = tuner(tmp_path / str(devices), corpus(words, room), options=how[devices], **settings)
        with run_ranks(trainer, devices):
            stopped_after(trainer, 3)
        again = tuner(tmp_path / str(devices), corpus(words, room), options=how[3 - devices], **settings)
        with run_ranks(again, 3 - devices):
            again.run(lambda point: None, corpus(words))
        if lora:
            again.model.save_adapter(tmp_path)
        curves.append([loss for p in again.curve for loss in (p.loss, p.heldout_loss) if loss is not None])
        counts.append((again.skipped_items, again.tokens_seen, again.tokens_read))
    assert counts[0] == counts[1]
    assert counts[0][0] > 0
    assert len(curves[0]) == 7
    assert curves[1] == pytest.approx(curves[0], abs=1e-5)


@pytest.mark.parametrize("lora", [0, 4])
def test_activation_checkpointing_tunes_the_same(lora: int, words: Any, tmp_path: Path) -> None:
    if lora:
        pytest.importorskip("peft")
    curves = []
    for checkpointing in (False, True):
        options = replace(EXACT, activation_checkpointing=checkpointing)
        trainer = tuner(tmp_path / str(checkpointing), corpus(words), lora_rank=lora, options=options)
        assert trainer.model.hf.is_gradient_checkpointing == checkpointing
        trainer.run(lambda point: None, corpus(words))
        curves.append([point.loss for point in trainer.curve])
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]


def stopped_after(trainer: Finetuner, steps: int) -> None:
    trainer.run(lambda point: None, should_stop=lambda: trainer.step >= steps)


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_training_has_the_same_weights(lora: bool, words: Any, tmp_path: Path) -> None:
    if lora:
        pytest.importorskip("peft")
    made = corpus(words)
    source = base = None
    settings: dict[str, Any] = {}
    if lora:
        base = tuner(tmp_path / "base", made)
        source = saved(base, tmp_path / "source")
        settings = {"lora_rank": 2, "dropout": 0.3, "source": "base"}
    whole = tuner(tmp_path / "whole", made, source, **settings)
    whole.run(lambda point: None)
    for steps in (1, 4, 6):
        part = tuner(tmp_path / "part", made, source, **settings)
        stopped_after(part, steps)
    for name, tensor in whole.weights().items():
        torch.testing.assert_close(part.weights()[name], tensor, rtol=0, atol=0)
    if lora:
        assert all("lora_" in name for name in whole.weights())
        assert base is not None
        kept = {name: tensor for name, tensor in whole.model.state_dict().items() if "lora_" not in name}
        assert kept.keys() == {name.replace("_proj.weight", "_proj.base_layer.weight") for name in base.weights()} | {
            "hf.lm_head.weight"
        }


def saved(trainer: Finetuner, folder: Path) -> Path:
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    model = trainer.copy_trained()
    save_checkpoint(model, folder, CheckpointInfo.from_network(model, trainer.corpus.encoding.name))
    trainer.corpus.encoding.save(folder)
    return folder


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_lora_is_merged_into_the_checkpoint_and_kept_beside_it(family: str, words: Any, tmp_path: Path) -> None:
    """The merged model gives the output of the library for the plain model with the adapter's folder."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    made = corpus(words)
    source = saved(tuner(tmp_path / "base", made, family=family), tmp_path / "source")
    trainer = tuner(tmp_path / "lora", made, source, family=family, lora_rank=2, lora_targets="attention", source="x")
    trainer.run(lambda point: None)
    (tmp_path / "adapter").mkdir()
    trainer.model.save_adapter(tmp_path / "adapter")
    assert str(tmp_path) not in (tmp_path / "adapter/adapter_config.json").read_text()
    tokens = torch.from_numpy(made.rows([0])[0][0][None].astype(np.int64))
    plain = AutoModelForCausalLM.from_pretrained(source).eval()
    assert json.loads((source / "config.json").read_text())["architectures"] == [type(plain).__name__]
    with torch.no_grad():
        before = plain(tokens).logits
        with_adapter = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()(tokens).logits
        merged = trainer.copy_trained()(tokens)
    assert float((with_adapter - before).abs().max()) > 1e-3
    torch.testing.assert_close(merged, with_adapter, atol=1e-4, rtol=0)


def test_what_does_not_fit_is_left_out_and_counted(words: Any, tmp_path: Path) -> None:
    """The start has twenty legal moves, the others few: the author's code cut the answer off."""
    made = corpus(words, template="junkin-5")
    lengths = [len(row) for row, _ in made.rows([0, 1, 2])]
    short = corpus(words, lengths[0] - 2, template="junkin-5")
    assert [prompt for _, prompt in short.rows([0, 1, 2])] == [prompt for _, prompt in made.rows([1, 2])]
    assert len(corpus(words, lengths[0] - 1, template="junkin-5").rows([0])) == 1  # the end is not read
    trainer = tuner(tmp_path / "some", short, batch_positions=3, steps=2)
    trainer.run(lambda point: None)
    assert (trainer.skipped_items, tuner(tmp_path / "some", short, batch_positions=3, steps=2).skipped_items) == (2, 2)
    with pytest.raises(BadInputError, match="none of the 3 positions of step 0 fits the model's 100 tokens"):
        tuner(tmp_path / "none", corpus(words, 100, template="junkin-5"), batch_positions=3).run(lambda point: None)


def tuned(session: Any, **settings: Any) -> tuple[Any, dict[str, list[float]]]:
    """The checkpoint's row and the curves of a run."""
    report = session.run(FinetuneSpec(**{"datasets": ("puzzles",), **settings}), HOW)
    with session.database.read() as sql:
        points = sql.query(tables.MetricPoint).filter_by(run_id=report.run_id).order_by(tables.MetricPoint.step).all()
        row = sql.query(tables.Checkpoint).filter_by(run_id=report.run_id).one()
        sql.expunge_all()
    curves: dict[str, list[float]] = {}
    for point in points:
        curves.setdefault(point.name, []).append(point.value)
    return row, curves


def test_a_model_learns_its_answers_and_is_asked_by_every_command(world_session: Any) -> None:
    from chessreg.experiments.puzzles import PuzzlesSpec

    row, curves = tuned(
        world_session, heldout="puzzles", heldout_steps=40, steps=80, batch_positions=6, learning_rate=1e-2, **SMALL
    )
    assert curves["heldout_loss"][-1] < 0.3 < curves["loss"][0]
    assert curves["heldout_accuracy"][-1] == 1
    assert (row.architecture, row.source_format) == ("llama", "chessreg-finetune")
    assert row.tokens_seen == 80 * 26  # four moves and a promotion, with their ends: two puzzles have one board
    report = world_session.run(PuzzlesSpec(checkpoint=row.id.hex, dataset="puzzles", policy="free"))
    with world_session.database.read() as sql:
        found = sql.query(tables.Prediction).filter_by(run_id=report.run_id).all()
        first = [one.detail["first"] for one in found if one.value is not None]
    assert len(first) >= 5
    assert all(first)


@pytest.mark.parametrize(
    ("family", "tune"), quick_first(1, [("qwen2", "lora"), ("gpt2", "whole"), ("qwen2", "whole"), ("gpt2", "lora")])
)
def test_a_model_of_another_family_is_tuned_and_answers(
    family: str, tune: str, world_session: Any, tmp_path: Path
) -> None:
    """All models that the adapters read can be tuned: GPT-2 by its own adapter, Qwen by the bridge."""
    from chessreg.experiments.decoding import DecodingSpec

    if tune == "lora":
        pytest.importorskip("peft")
    name = bring_in(world_session, "prompt", family, tmp_path / f"{family}-{tune}")
    how = {"tune": tune, "template": "junkin-small", "batch_positions": 6, "warmup_steps": 0, "learning_rate": 1e-2}
    row, curves = tuned(world_session, checkpoint=name, steps=20, **how)
    assert curves["loss"][-1] < curves["loss"][0]
    assert (row.architecture, row.parent_id) == (family, world_session.id("checkpoint", name))
    run = world_session.run(DecodingSpec(checkpoint=row.id.hex, dataset="puzzles", positions=2))
    assert not run.missing


def test_lora_s_matrices_are_those_of_the_blocks(words: Any) -> None:
    from chessreg.models.finetuning import choose_lora_targets, make_language_model

    shape: dict[str, Any] = {"n_layer": 1, "n_head": 2, "n_embd": 32, "block_size": 64, "vocab_size": 40}
    found = {
        family: [
            choose_lora_targets(make_language_model(FinetuneConfig(family=family, **shape)), which)
            for which in ("attention", "all")
        ]
        for family in ("llama", "gpt_neox", "gpt2")
    }
    assert found == {
        "llama": [
            ["k_proj", "q_proj", "v_proj"],
            ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        ],
        "gpt_neox": [["query_key_value"], ["dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value"]],
        "gpt2": [["c_attn"], ["c_attn", "c_fc", "c_proj"]],
    }


def test_a_head_that_caps_its_logits_is_not_taken_for_a_plain_one() -> None:
    """Gemma 2 caps its logits: a loss over the output matrix alone would be that of another model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from chessreg.models.finetuning import has_plain_head

    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8,
             "num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 1.0}  # fmt: skip
    made = [AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma2", **shape, final_logit_softcapping=cap))
            for cap in (1.0, None)]  # fmt: skip
    assert [has_plain_head(model) for model in made] == [False, True]


def test_a_checkpoint_is_tuned_on_with_a_template_of_its_own(world_session: Any) -> None:
    start, curves = tuned(world_session, steps=0, seed=5, **SMALL)
    assert (curves, start.tokens_seen, start.training_datasets) == ({}, 0, [])
    asked = {"template": "Moves {FEN} and {BM}", "notation": "san", "counters": "blanked"}
    row, _ = tuned(world_session, checkpoint=start.id.hex, steps=2, warmup_steps=0, batch_positions=2, **asked)
    assert (row.parent_id, row.tokenizer[:11]) == (start.id, "prompt-own-")
    folder = world_session.store.path(row.artifact)
    told = json.loads((folder / "prompt.json").read_text())
    assert {name: told[name] for name in asked} == asked
    assert told["layout"] == "ruoss77"
    assert row.training_datasets == [world_session.inputs.reference("dataset", "puzzles")]
    again, _ = tuned(world_session, checkpoint=start.id.hex, steps=2, warmup_steps=0, batch_positions=2)
    assert again.tokenizer == start.tokenizer


def test_a_tuned_model_is_refused_its_own_positions_and_does_not_know_what_its_parent_read(world_session: Any) -> None:
    from chessreg.experiments.settings import overlap

    start, _ = tuned(world_session, steps=0, seed=6, **SMALL)
    row, _ = tuned(world_session, checkpoint=start.id.hex, steps=1, warmup_steps=0, batch_positions=2)
    inputs, reference = world_session.inputs, world_session.inputs.reference("checkpoint", row.id.hex)
    positions, _ = inputs.positions(inputs.reference("dataset", "puzzles"))
    evaluated = overlap.EvaluatedGames.from_items(positions, np.arange(3))
    found = overlap.measure_overlap(inputs, reference, evaluated)
    assert found.positions == found.of_positions > 1
    with pytest.raises(BadInputError, match="3 of the 3 games"):
        overlap.refuse_overlap(inputs, reference, positions, np.arange(3), allow=False)
    with world_session.database.write() as sql:
        sql.get_one(tables.Checkpoint, start.id).training_datasets = None
    found = overlap.measure_overlap(inputs, reference, evaluated)
    assert (found.positions, "before tuning was imported" in (found.why_unknown or "")) == (None, True)
    with pytest.raises(BadInputError, match="3 of the 3 games"):
        overlap.refuse_overlap(inputs, reference, positions, np.arange(3), allow=False)


def test_a_template_of_a_file_is_its_text(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Position {FEN}, best {BM}\n")
    by_file = FinetuneSpec(datasets=("d",), family="llama", template=str(tmp_path / "own.txt"))
    assert by_file.template == "Position {FEN}, best {BM}"
    assert get_hashed_settings(by_file) == get_hashed_settings(
        by_file.model_copy(update={"template": "Position {FEN}, best {BM}"})
    )


def test_a_template_is_hashed_as_its_text() -> None:
    by_name, by_text = (
        FinetuneSpec(datasets=("d",), family="llama", template=template)
        for template in ("junkin-3", TEMPLATES["junkin-3"])
    )
    assert get_hashed_settings(by_name) == get_hashed_settings(by_text)
    assert get_hashed_settings(by_name)["template"] == TEMPLATES["junkin-3"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "finetune needs exactly one model"),
        ({"family": "llama", "checkpoint": "x"}, "finetune needs exactly one model"),
        ({"checkpoint": "x", "n_layer": 2}, "--n-layer has no effect: --checkpoint has a shape"),
        ({"family": "llama", "lora_rank": 4}, "--lora-rank has no effect: it needs --tune lora"),
        ({"family": "llama", "tune": "lora"}, "needs trained weights"),
        ({"family": "llama", "n_embd": 36}, "--n-embd 36 is not an even multiple of --n-head 4"),
        ({"family": "llama", "template": "no place {BM}"}, "a prompt template has one {FEN}"),
        ({"family": "llama", "template": "nowhere"}, "'nowhere' is neither a prompt template nor a file"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((BadInputError, NotFoundError)) as caught:
        FinetuneSpec(datasets=("d",), **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lora_without_its_library_is_refused_before_anything_runs(world_session: Any, monkeypatch: Any) -> None:
    start, _ = tuned(world_session, steps=0, **SMALL)
    monkeypatch.setitem(sys.modules, "peft", None)
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *package: None if name == "peft" else there(name))
    with pytest.raises(NotFoundError, match="LoRA needs the library peft") as caught:
        world_session.run(FinetuneSpec(checkpoint=start.id.hex, datasets=("puzzles",), tune="lora"), HOW)
    assert "'peft<1,>=" in str(caught.value.hint)


def test_models_and_datasets_that_do_not_fit_are_refused(world_session: Any) -> None:
    llama = {"family": "llama", "datasets": ("puzzles",)}
    for settings, message in (
        ({"checkpoint": "reference", "datasets": ("puzzles",)}, "reads pgn-char-32, not prompts"),
        ({"checkpoint": "fen", "datasets": ("puzzles",)}, "reads fen-77, not prompts"),
        ({"family": "llama", "datasets": ("sample:fit",)}, "games"),
        ({**llama, "template": "junkin-1", "block_size": 128, "steps": 1}, "the model reads 128 tokens, but the first"),
    ):
        with pytest.raises(ChessregError, match=message) as caught:
            world_session.run(FinetuneSpec(**settings), HOW)
        assert "\n" not in str(caught.value)


def test_an_architecture_that_the_library_does_not_have_is_refused() -> None:
    with pytest.raises(BadInputError, match="cannot tune a model of the architecture own-kind") as caught:
        check_tunable(tables.Checkpoint(tokenizer="prompt-junkin-small-0123456789ab", architecture="own-kind"))
    assert "qwen2" in caught.value.hint


def test_quantization_without_its_library_is_refused_before_anything_is_trained(
    world_session: Any, monkeypatch: Any
) -> None:
    pytest.importorskip("peft")
    start, _ = tuned(world_session, steps=0, **SMALL)
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *package: None if name == "bitsandbytes" else there(name, *package)
    )
    spec = FinetuneSpec(checkpoint=start.id.hex, datasets=("puzzles",), tune="qlora")
    with pytest.raises(NotFoundError, match="--tune qlora needs the library bitsandbytes") as caught:
        world_session.run(spec, HOW)
    assert "--tune lora" in str(caught.value.hint)


def test_a_device_without_quantization_is_refused(monkeypatch: Any) -> None:
    from types import SimpleNamespace

    from chessreg.models.finetuning import require_quantization

    def quantize_4bit(*given: Any, **how: Any) -> Any:
        raise RuntimeError("no kernel for this device")

    monkeypatch.setattr("importlib.util.find_spec", lambda name, *package: object())
    functional = SimpleNamespace(quantize_4bit=quantize_4bit, dequantize_4bit=None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(functional=functional))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", functional)
    with pytest.raises(BadInputError, match="cannot quantize on cpu: no kernel for this device"):
        require_quantization("cpu")
