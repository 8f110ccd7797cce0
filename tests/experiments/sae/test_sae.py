"""The kind `sae`: trained from a cache or a model, measured by hand, resumed to the last bit, read back."""

from __future__ import annotations

import pickle
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

from chessreg.cli.root import run_command_line
from chessreg.entities import load_entity
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.entities.run import build_unit_frames
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.sae import SaeOptions, SaeSpec
from chessreg.experiments.sae.data import CacheRows, ModelRows, SaeOrigin
from chessreg.experiments.sae.stored import SAE_FILE, read_stored_sae
from chessreg.experiments.sae.training import SaeTrainer, interpolate_coefficient
from chessreg.games.boards.moves import unpack_moves
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.hook_points import LN_FINAL, format_hook_point
from chessreg.models.language_model import LanguageModel, collect_activations
from chessreg.registry import tables
from chessreg.runs.activations import load_cache
from chessreg.session import Session, open_session
from store.errors import DiskFullError
from tests.quick import quick_first

SMALL: dict[str, Any] = {
    "expansions": (2,), "tokens": 6000, "batch_tokens": 200, "mix_tokens": 1000, "heldout_games": 6
}  # fmt: skip
STREAM: dict[str, Any] = {"checkpoint": "reference", "dataset": "sample:fit", **SMALL, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def opened(world: Path) -> Iterator[Session]:
    with open_session(str(world / "registry.db"), world / "store") as session:
        yield session


@pytest.fixture(scope="module")
def streamed(opened: Session) -> Any:
    """A run over all layers, and the session that has it."""
    report = opened.run(SaeSpec(**STREAM, boards=3), name="streamed")
    assert report.state == "complete"
    return report.run_id


@pytest.fixture
def another(pristine_world: Path, tmp_path: Path) -> Iterator[Session]:
    """The same world in which nothing of this has run."""
    shutil.copytree(pristine_world, tmp_path / "other")
    with open_session(str(tmp_path / "other" / "registry.db"), tmp_path / "other" / "store") as session:
        yield session


def digests(session: Session, run_id: Any) -> dict[int, str]:
    with session.database.read() as sql:
        return {row.unit: row.artifact for row in sql.query(tables.SaeRecord).filter_by(run_id=run_id)}


def values(session: Session, run_id: Any, unit: int) -> dict[str, float]:
    with session.database.read() as sql:
        return {row.name: row.value for row in sql.query(tables.Statistic).filter_by(run_id=run_id, unit=unit)}


def points(session: Session, run_id: Any, unit: int, name: str) -> dict[int, float]:
    with session.database.read() as sql:
        found = sql.query(tables.MetricPoint).filter_by(run_id=run_id, unit=unit, name=name)
        return {row.step: row.value for row in found}


def all_but_the_first(value: torch.Tensor) -> Callable[..., torch.Tensor]:
    def replaced(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        return torch.cat([output[:, :1], value.expand(1, output.shape[1] - 1, 32)], 1)

    return replaced


def test_centred_it_begins_at_the_mean_and_is_scaled_by_the_distance_from_it() -> None:
    """Of residuals that are mostly their mean, as a model trained with Muon has them, it reconstructs more so: the
    bias, which a step moves by at most the learning rate, would not arrive."""
    drawn = torch.Generator().manual_seed(0)
    codes = torch.relu(torch.randn(4000, 24, generator=drawn) - 1)
    rows = 50 + 3 * codes @ torch.randn(24, 16, generator=drawn)

    def explained(**settings: Any) -> float:
        spec = SaeSpec(cache="a", expansions=(2,), tokens=20_000, batch_tokens=100, learning_rate=3e-3, **settings)
        trainer = SaeTrainer(spec, format_hook_point(0), 2, 16, Path("/nowhere"), "cpu")
        trainer.learn_scale(rows)
        if spec.centre:
            torch.testing.assert_close(trainer.sae.b_dec / trainer.scale, rows.mean(0), rtol=1e-4, atol=1e-3)
            assert float((rows - rows.mean(0)).norm(dim=1).mean()) * trainer.scale == pytest.approx(4, rel=1e-4)
        for step in range(spec.steps):
            trainer.update(rows[step % 40 * 100 :][:100])
        error = rows - trainer.sae.reconstruction(rows)
        return 1 - float(error.var(0).sum() / rows.var(0).sum())

    assert explained(centre=True, l1_coefficient=0.5) > explained(l1_coefficient=0.5) + 0.1
    same = SaeTrainer(SaeSpec(cache="a", centre=True), format_hook_point(0), 2, 16, Path("/nowhere"), "cpu")
    with pytest.raises(BadInputError, match="are all equal"):
        same.learn_scale(rows[:1].expand(300, -1) * 1.1)


@pytest.mark.parametrize("rate", [3e-3, 0.3])
def test_decoder_columns_have_length_1_after_every_step_and_no_step_spends_itself_on_their_length(rate: float) -> None:
    spec = SaeSpec(cache="a", expansions=(2,), tokens=2000, batch_tokens=100, learning_rate=rate, warmup_steps=1)
    trainer = SaeTrainer(spec, format_hook_point(0), 2, 16, Path("/nowhere"), "cpu")
    rows = 3 * torch.randn(2000, 16, generator=torch.Generator().manual_seed(0))
    trainer.learn_scale(rows)
    step, along = trainer.adam.step, []

    def watched(gradient: dict[str, torch.Tensor], learning_rate: float) -> None:
        along.append(float((gradient["W_dec"] * trainer.sae.W_dec).sum(1).abs().max()))
        step(gradient, learning_rate)

    trainer.adam.step = watched  # type: ignore[method-assign]
    before = trainer.sae.W_dec.clone()
    for number in range(spec.steps):
        trainer.update(rows[number * 100 :][:100])
        torch.testing.assert_close(trainer.sae.W_dec.norm(dim=1), torch.ones(32))
    assert max(along) < 1e-4
    assert float((trainer.sae.W_dec - before).abs().max()) > rate


def with_references(session: Session, spec: SaeSpec) -> SaeSpec:
    """A streamed run's spec as it is resolved."""
    inputs = session.inputs
    named = {"checkpoint": spec.checkpoint or "", "dataset": spec.dataset or ""}
    return spec.model_copy(update={noun: inputs.reference(noun, name) for noun, name in named.items()})


def test_metrics_are_those_computed_by_hand(opened: Session, streamed: Any) -> None:
    """Every game separately, one layer, with the definitions of the metrics written out."""
    spec, layer = SaeSpec(**STREAM, boards=3), 1
    inputs, model = opened.inputs, opened.model("reference")
    resolved = with_references(opened, spec)
    origin, sae = SaeOrigin.from_spec(resolved, inputs), opened.sae("streamed", layer)
    block = model.network.hook_points[format_hook_point(layer)]
    mean = SaeTrainer(spec, format_hook_point(layer), 2, 32, Path("/nowhere"), "cpu")
    rows = ModelRows(resolved, origin, model, 32)
    first = [
        batch[format_hook_point(layer)]
        for batch, _ in zip(rows.batches([format_hook_point(layer)]), range(5), strict=False)
    ]
    mean.learn_scale(torch.cat(first))
    assert abs(sae.scale * float(torch.cat(first).norm(dim=1).mean()) - 32**0.5) < 1e-4
    x, again, code, nats = [], [], [], {name: [] for name in ("without", "with", "zero", "mean")}
    for text in origin.held_items.texts(origin.held_places):
        ids = torch.from_numpy(model.encoding.encode(text)[:1023].astype(np.int64))[None]
        residual = model.residuals(ids, [layer])[0, 0, 1:]  # without the semicolon, which begins the text
        x.append(residual)
        code.append(sae.encode(residual))
        again.append(sae.decode(code[-1]))
        instead = {"without": None, "with": again[-1], "zero": torch.zeros(32), "mean": mean.mean}
        for name, value in instead.items():
            if value is not None:
                handle = block.register_forward_hook(all_but_the_first(value))
            logits = model.logits(ids)[0, :-1]
            if value is not None:
                handle.remove()
            nats[name].append(F.cross_entropy(logits, ids[0, 1:], reduction="none").double())
    xs, ys, codes = (torch.cat(parts).double() for parts in (x, again, code))
    ce = {name: float(torch.cat(parts).mean()) for name, parts in nats.items()}
    wanted = {
        "sse_per_token": (xs - ys).square().sum(1).mean(),
        "mse_per_dim": (xs - ys).square().mean(),
        "l0": (codes > 0).sum(1).double().mean(),
        "l1": codes.sum(1).mean(),
        "cosine": F.cosine_similarity(xs, ys).mean(),
        "explained_variance": 1 - (xs - ys).var(0, correction=0).sum() / xs.var(0, correction=0).sum(),
        "silent_fraction": (codes > 0).sum(0).eq(0).double().mean(),
        "ce_without_sae": ce["without"],
        "ce_with_sae": ce["with"],
        "ce_zero_ablation": ce["zero"],
        "ce_mean_ablation": ce["mean"],
        "loss_recovered": (ce["zero"] - ce["with"]) / (ce["zero"] - ce["without"]),
    }
    found = values(opened, streamed, layer)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(float(value), rel=2e-4, abs=2e-5), name
    fired = (codes > 0).sum(0)
    bins = torch.floor(2 * torch.log10(fired[fired > 0] / len(codes)))
    assert points(opened, streamed, layer, "firing_frequency") == {
        int(step): float((bins == step).sum()) for step in bins.unique()
    }
    with opened.database.read() as sql:
        latents = {row.item: row for row in sql.query(tables.Prediction).filter_by(run_id=streamed, unit=layer)}
    assert set(latents) == set(torch.nonzero(fired).flatten().tolist())
    some = max(latents, key=lambda latent: latents[latent].value)
    by_game = [float(part[:, some].max()) for part in code]
    assert latents[some].detail["activations"] == pytest.approx(sorted(by_game, reverse=True)[:3], abs=1e-3)
    game = int(np.argmax(by_game))
    assert latents[some].detail["games"][0] == origin.held_places[game]
    assert latents[some].detail["tokens"][0] == int(code[game][:, some].argmax()) + 1
    assert latents[some].detail["frequency"] == pytest.approx(int(fired[some]) / len(codes))


def test_explained_variance_along_training_is_that_of_the_batch():
    """SAELens's: 1 minus the squared error over the squared distance from the batch's mean."""
    spec = SaeSpec(cache="a", tokens=64, batch_tokens=64, normalize_activations=False)
    trainer = SaeTrainer(spec, format_hook_point(0), 2, 16, Path("/nowhere"), "cpu")
    rows = 3 + torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    trainer.learn_scale(rows)
    with torch.no_grad():
        error = (trainer.sae.decode(trainer.sae.encode(rows)) - rows).square().sum()
    trainer.update(rows)
    [point] = trainer.curve
    wanted = 1 - float(error / (rows - rows.mean(0)).square().sum())
    assert point["train_explained_variance"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activations_stay_on_the_device_and_steps_between_points_of_the_curve_never_wait_for_it(precision):
    """Tensors on the device "meta" have no values: reading one, or copying it to the CPU, fails."""
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, block_size=32, vocab_size=32)
    model = LanguageModel(make_random_gpt2(config, seed=0))
    model.network.to("meta")
    points, each = [format_hook_point(0), LN_FINAL], torch.arange(64)
    tokens = torch.zeros(64, 20, dtype=torch.int64)
    rows = collect_activations(model, points, 64, [(tokens, each, each % 20, each)])
    assert {point: (value.shape, value.device.type) for point, value in rows.items()} == dict.fromkeys(
        points, ((64, model.d_model), "meta")
    )
    spec = SaeSpec(cache="a", tokens=64_000, batch_tokens=64, precision=precision)
    trainer = SaeTrainer(spec, points[0], 2, model.d_model, Path("/nowhere"), "meta")
    for _ in range(9):
        trainer.update(rows[points[0]])
    with pytest.raises(RuntimeError, match="meta"):
        trainer.update(rows[points[0]])  # the tenth of 1,000 steps is a point of the curve


def test_products_in_bfloat16_train_as_well_as_those_in_float32():
    drawn = torch.randn(6400, 16, generator=torch.Generator().manual_seed(0)).abs().pow(2)
    last = {}
    for precision in ("float32", "bfloat16"):
        spec = SaeSpec(cache="a", tokens=6400, batch_tokens=64, precision=precision, learning_rate=3e-3)
        trainer = SaeTrainer(spec, format_hook_point(0), 4, 16, Path("/nowhere"), "cpu")
        trainer.learn_scale(drawn)
        for rows in drawn.split(64):
            trainer.update(rows)
        last[precision] = trainer.curve[-1]
        assert last[precision]["train_loss"] < 0.7 * trainer.curve[0]["train_loss"]
        assert {value.dtype for value in trainer.sae.parameters().values()} == {torch.float32}
    for name, value in last["float32"].items():
        assert last["bfloat16"][name] == pytest.approx(value, rel=0.03), name


def test_all_layers_of_one_pass_are_those_trained_alone(opened: Session, streamed: Any) -> None:
    alone = opened.run(SaeSpec(**STREAM, boards=3, layers=(1,))).run_id
    one, both = opened.sae(alone.hex), opened.sae("streamed", layer=1)
    for name, value in both.parameters().items():
        assert torch.equal(getattr(one, name), value), name
    loss = points(opened, streamed, 1, "train_loss")
    assert loss[max(loss)] < 0.7 * loss[min(loss)]
    explained = points(opened, streamed, 1, "train_explained_variance")
    assert loss.keys() == explained.keys()
    assert explained[min(explained)] < explained[max(explained)] <= 1
    torch.testing.assert_close(both.W_dec.norm(dim=1), torch.ones(64))


def rows_of(session: Session, run_id: Any, table: Any, unit: int) -> list[dict[str, Any]]:
    """The result rows of a unit without ids, and without the seconds that its training took."""
    left_out = {"run_id", "unit", "attempt_id"}
    with session.database.read() as sql:
        found = sql.query(table).filter_by(run_id=run_id, unit=unit)
        rows = [{name: value for name, value in row.__dict__.items() if name not in left_out} for row in found]
    rows = [row for row in rows if row.get("name") != "train_seconds" and row.pop("_sa_instance_state")]
    return sorted(rows, key=lambda row: (row["name"], row.get("item", 0), row.get("step", 0)))


@pytest.mark.slow
def test_expansions_of_one_run_are_those_of_runs_of_their_own_bit_for_bit(
    opened: Session, streamed: Any, monkeypatch: pytest.MonkeyPatch, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model runs once over the tokens for all expansions, and every row, output and parameter stays the same."""
    asked: list[tuple[int, tuple[str, ...]]] = []
    chunk = ModelRows._compute_chunk
    monkeypatch.setattr(
        ModelRows,
        "_compute_chunk",
        lambda self, number, points: asked.append((number, points)) or chunk(self, number, points),
    )
    spec = {**STREAM, "boards": 3}
    several = opened.run(SaeSpec(**{**spec, "expansions": (3, 2)}), name="several").run_id
    assert asked == [(number, (format_hook_point(0), format_hook_point(1))) for number in range(6)]
    alone = opened.run(SaeSpec(**{**spec, "expansions": (3,)})).run_id
    for unit, (run_id, of) in enumerate([(alone, 0), (alone, 1), (streamed, 0), (streamed, 1)]):
        assert digests(opened, several)[unit] == digests(opened, run_id)[of]
        for table in (tables.Statistic, tables.MetricPoint, tables.Prediction):
            rows = rows_of(opened, several, table, unit)
            assert rows == rows_of(opened, run_id, table, of)
            assert rows
    with opened.database.read() as sql:
        outputs = {row.name for row in sql.query(tables.Output).filter_by(run_id=several)}
    assert outputs == {f"{format_hook_point(layer)}.{expansion}x" for layer in (0, 1) for expansion in (3, 2)}

    answer = opened.query("sae reconstruction", run=several.hex).rows
    assert [(row["layer"], row["expansion"], row["features"]) for row in answer] == [
        (0, 2, 64), (0, 3, 96), (1, 2, 64), (1, 3, 96)
    ]  # fmt: skip
    assert opened.sae("several", layer=1, expansion=3).features == 96
    with pytest.raises(BadInputError, match="has the expansions 3, 2"):
        opened.sae("several", layer=1)
    with pytest.raises(NotFoundError, match="has no expansion 16"):
        opened.sae("several", layer=1, expansion=16)
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    assert run_command_line([*place, "sae", "show", "several", "--layer", "0", "--expansion", "3"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith("features")] == ["96"]
    assert run_command_line([*place, "sae", "show", "several", "--layer", "0"]) != 0
    assert "--expansion" in capsys.readouterr().err
    thing = load_entity("sae").read_details(opened, several)
    assert thing.parts[0].chart is not None
    assert len(thing.parts[0].chart.panels[0].series) == 4
    assert {row["hook_point"] for row in thing.parts[1].rows} == {
        f"{format_hook_point(layer)} {expansion}x" for layer in (0, 1) for expansion in (3, 2)
    }


@pytest.mark.parametrize(("expansions", "message"), [((), "at least 1"), ((0,), "greater than"), ((2, 2), "twice")])
def test_expansions_that_make_no_sense_are_refused(expansions: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SaeSpec(cache="a", expansions=expansions)


def test_every_token_is_read_once_in_an_epoch_and_no_special_one(opened: Session) -> None:
    spec = SaeSpec(**{**STREAM, "batch_tokens": 64, "mix_tokens": 320})
    spec = with_references(opened, spec)
    origin, model, point = SaeOrigin.from_spec(spec, opened.inputs), opened.model("reference"), format_hook_point(0)
    places = origin.places
    assert not set(places.tolist()) & set(origin.held_places.tolist())
    want = []
    for text in origin.items.texts(places):
        ids = torch.from_numpy(model.encoding.encode(text)[:1023].astype(np.int64))[None]
        want.append(model.residuals(ids, [0])[0, 0, 1:])
    want = torch.cat(want)
    whole = ModelRows(spec.model_copy(update={"batch_tokens": len(want)}), origin, model, 8)
    epoch, next_epoch = (batch[point] for batch, _ in zip(whole.batches([point]), range(2), strict=False))
    for read in (epoch, next_epoch):
        torch.testing.assert_close(read.double().sum(0), want.double().sum(0), atol=1e-2, rtol=1e-4)
        torch.testing.assert_close(read.double().square().sum(0), want.double().square().sum(0), atol=1e-2, rtol=1e-4)
    assert (epoch != next_epoch).any()
    rows = ModelRows(spec, origin, model, 8)
    read = torch.cat([batch[point] for batch, _ in zip(rows.batches([point]), range(9), strict=False)])
    later = next(ModelRows(spec, origin, model, 8).batches([point], first=7))[point]
    assert torch.equal(later, read[7 * 64 : 8 * 64])


def test_the_model_runs_once_over_the_tokens_that_give_the_scale_and_are_trained_on_first(
    another: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    chunk = ModelRows._compute_chunk
    monkeypatch.setattr(
        ModelRows, "_compute_chunk", lambda self, number, points: asked.append(number) or chunk(self, number, points)
    )
    another.run(SaeSpec(**{**STREAM, "tokens": 2000}))
    assert asked == [0, 1]


def test_what_is_measured_has_the_final_tokens_of_its_cache(opened: Session) -> None:
    cache = CacheSpec(checkpoint="reference", dataset="sample:fit", games=6, last_sites=3)
    opened.run(cache, name="final-tokens")
    reference = opened.inputs.reference("run:cache", "final-tokens")
    origin = SaeOrigin.from_spec(SaeSpec(cache=reference, heldout_games=2), opened.inputs)
    written = opened.model("reference").encoding
    held = origin.encode_items(written, origin.held_items, origin.held_places)
    trained = origin.encode_items(written, origin.items, origin.places)
    rows = load_cache(opened.inputs, reference).array.rows
    assert set(held.counts.tolist()) <= {0, 3}
    assert held.counts.sum() + trained.counts.sum() == rows > 0


def test_a_cache_gives_its_rows_without_special_tokens_and_held_out_games(opened: Session) -> None:
    opened.run(CacheSpec(checkpoint="reference", dataset="sample:fit", games=8, sites="all"), name="every-token")
    spec = SaeSpec(cache=opened.inputs.reference("run:cache", "every-token"), **{**SMALL, "mix_tokens": 65536})
    origin = SaeOrigin.from_spec(spec, opened.inputs)
    rows = CacheRows(spec, origin, opened.inputs)
    array = rows.array
    assert (array.token[~rows.mask & np.isin(array.game, origin.places)] == 0).all()
    assert (array.token[rows.mask] > 0).all()
    assert set(array.game[rows.mask].tolist()) == set(origin.places.tolist())
    steps = -(-int(rows.mask.sum()) // 200)
    first = [batch for batch, _ in zip(rows.batches(origin.points), range(steps + 2), strict=False)]
    assert sum(len(batch[origin.points[0]]) for batch in first[:steps]) == rows.mask.sum()
    again = next(rows.batches(origin.points, first=steps + 1))
    for point in origin.points:
        assert torch.equal(again[point], first[steps + 1][point])


def test_it_is_listed_shown_verified_traced_and_asked(
    opened: Session, streamed: Any, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> str:
        capsys.readouterr()
        status = run_command_line(["--registry", str(world / "registry.db"), "--store", str(world / "store"), *words])
        told = capsys.readouterr()
        assert status == 0, told.err
        return told.out

    assert "blocks.1.hook_resid_post" in typed("sae", "list")
    assert "explained variance" in typed("sae", "show", "streamed", "--layer", "0")
    assert "blocks.1.hook_resid_post" in typed("sae", "show", "streamed", "--hook-point", format_hook_point(1))
    assert typed("sae", "verify", "streamed").split() == ["saes", "2"]
    assert "sample" in typed("lineage", "streamed")
    answer = opened.query("sae reconstruction", run=streamed.hex)
    assert [row["layer"] for row in answer.rows] == [0, 1]
    for unit, row in enumerate(answer.rows):
        measured = values(opened, streamed, unit)
        assert row["l0_low"] <= row["l0"] <= row["l0_high"]
        assert {name: row[name] for name in measured} == pytest.approx(measured)
        assert (row["l1_coefficient"], bool(row["overlap"])) == (1.0, True)
    published = typed("query", "sae reconstruction", "--published", "--format", "csv")
    assert published.count("not comparable: the paper's number is lost") == 6
    boards = typed("board", "streamed:1", "--item", str(latent(opened, streamed)))
    assert boards.count("8  ") == 3
    thing = load_entity("sae").read_details(opened, streamed)
    assert [part.name.split()[0] for part in thing.parts] == ["SAEs", "metrics", "firing", "latents", "facts"]
    assert thing.parts[3].rows[0]["result_table"] == "prediction"
    l0 = {row["hook_point"]: row["value"] for row in thing.parts[1].rows if row["metric"] == "l0"}
    assert l0 == {f"blocks.{unit}.hook_resid_post": pytest.approx(row["l0"]) for unit, row in enumerate(answer.rows)}


def latent(session: Session, run_id: Any) -> int:
    """One that is strong in three games."""
    with session.database.read() as sql:
        rows = sql.query(tables.Prediction).filter_by(run_id=run_id, unit=1)
        return next(row.item for row in rows if len(row.detail["games"]) == 3)


def test_what_is_read_back_is_checked(opened: Session, streamed: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="2 SAEs that match"):
        opened.sae("streamed")
    with pytest.raises(NotFoundError, match="no SAE of layer 7"):
        opened.sae("streamed", layer=7)
    with pytest.raises(BadInputError, match="not a sae run"):
        opened.sae("reference-board")

    (tmp_path / SAE_FILE).write_bytes(pickle.dumps({"W_gate": [1]}))
    with pytest.raises(BadInputError, match="is damaged"):
        read_stored_sae(tmp_path, {"architecture": "gated", "scale": 1.0})
    tensors = opened.sae("streamed", layer=0).tensors()
    save_file({**tensors, "W_dec": tensors["W_dec"][:, :5].copy()}, tmp_path / SAE_FILE)
    with pytest.raises(BadInputError, match="of the SAE has shape"):
        read_stored_sae(tmp_path, {"architecture": "gated", "scale": 1.0})
    tensors["b_mag"][3] = np.nan
    save_file(tensors, tmp_path / SAE_FILE)
    with pytest.raises(BadInputError, match="b_mag of the SAE has NaN"):
        read_stored_sae(tmp_path, {"architecture": "gated", "scale": 1.0})


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("source", quick_first(1, ["cache", "model"]))
def test_a_training_that_ends_anywhere_is_taken_up_to_the_last_bit(
    source: str, opened: Session, another: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within the short trainings of a search, between the states of two layers, and with several expansions."""
    made = STREAM if source == "model" else {"cache": "reference-fit", **SMALL, "mix_tokens": 65536}
    expansions = (2,) if source == "cache" else (2, 3)
    spec = SaeSpec(
        **{**made, "tokens": 3000, "expansions": expansions},
        l0=4.0,
        l0_search=(0.5, 4.0),
        l0_search_tokens=1000,
        boards=1,
    )
    whole = opened.run(spec, name=f"whole-{source}").run_id
    update, save, counted = SaeTrainer.update, SaeTrainer.save, [0]
    for ends in np.multiply((5, 9, 14), len(expansions)).tolist():  # in a short training, in the next, in the real one

        def ended(self: SaeTrainer, *arguments: Any, of: Callable[..., None], at: int = ends) -> None:
            counted[0] += 1
            if counted[0] > at:
                raise Killed
            of(self, *arguments)

        counted[0] = 0

        def saved(self: SaeTrainer) -> None:  # at times one layer alone
            if self.point.startswith("blocks.0") or counted[0] % 3:
                save(self)

        monkeypatch.setattr(SaeTrainer, "update", partialmethod(ended, of=update))
        monkeypatch.setattr(SaeTrainer, "save", saved)
        with pytest.raises(Killed):
            another.run(spec, SaeOptions(checkpoint_seconds=1e-9))
    monkeypatch.setattr(SaeTrainer, "update", update)
    monkeypatch.setattr(SaeTrainer, "save", save)
    seen: list[float] = []
    resumed = another.run(spec, on_progress=lambda fraction, text: seen.append(fraction)).run_id
    assert (resumed, seen[0] > 0.4) == (whole, True)  # 14 updates of 22 or more are in the saved states
    assert digests(another, whole) == digests(opened, whole)
    for unit in range(2 * len(expansions)):
        assert values(another, whole, unit) == values(opened, whole, unit)
        swept = points(opened, whole, unit, "search_l0")
        assert set(swept) == {0, 1}
        assert points(opened, whole, unit, "l1_coefficient")[0] == pytest.approx(
            interpolate_coefficient(4.0, (0.5, 4.0), [swept[0], swept[1]])
        )
    assert not list(another.store.run_folder(whole.hex).glob("sae-*"))


def test_a_killed_process_is_taken_up_to_the_last_bit(
    opened: Session, streamed: Any, another: Session, spawn: Callable[..., Any]
) -> None:
    place = ["--registry", another.database.reference, "--store", str(another.store.root)]
    words = [*place, "run", "sae"]
    for name, value in {**STREAM, "boards": 3, "expansions": 2}.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    process = spawn([*words, "--checkpoint-seconds", "0.01"])
    state = another.store.run_folder(streamed.hex) / "sae-1.pt"
    deadline = time.monotonic() + 300
    while process.is_alive() and not state.exists():
        assert time.monotonic() < deadline, "no state was saved"
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    assert another.run(SaeSpec(**STREAM, boards=3)).run_id == streamed
    assert digests(another, streamed) == digests(opened, streamed)


def test_a_state_that_the_disk_has_no_room_for_leaves_the_one_before_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = SaeTrainer(SaeSpec(cache="a", tokens=400), format_hook_point(0), 16, 8, tmp_path / "sae-0.pt", "cpu")
    trainer.save()
    before = trainer.path.read_bytes()

    def full(state: Any, file: Any) -> None:
        file.write(b"the beginning of a state")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(DiskFullError, match=f"the disk is full at {trainer.path}"):
        trainer.save()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_the_coefficient_that_a_search_says() -> None:
    tried, measured = (1.0, 2.0, 4.0), [80.0, 40.0, 10.0]
    assert interpolate_coefficient(40, tried, measured) == pytest.approx(2.0)
    assert interpolate_coefficient(20, tried, measured) == pytest.approx(2 * 2**0.5)
    assert interpolate_coefficient(5, tried, measured) == pytest.approx(4.0)  # nothing is known beyond the values tried
    assert interpolate_coefficient(100, tried, measured) == pytest.approx(1.0)
    assert interpolate_coefficient(10, (1.0, 2.0), [20.0, 0.0]) > 1.0


def test_a_model_of_positions_has_no_cross_entropy_and_its_boards_are_drawn(opened: Session, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network = FenEncoder(FenConfig(n_layer=1, n_head=2, n_embd=16))
    save_checkpoint(network, tmp_path / "fen", CheckpointInfo.from_network(network, "fen-77"))
    import_checkpoint(opened.database, opened.store, tmp_path / "fen", name="fen")
    settings = {**SMALL, "games": 6, "heldout_games": 2, "tokens": 400, "batch_tokens": 100}
    run_id = opened.run(SaeSpec(checkpoint="fen", dataset="sample:test", sites="turns", **settings)).run_id
    measured = values(opened, run_id, 0)
    assert {"l0", "explained_variance", "dead_fraction"} <= measured.keys()
    assert not [name for name in measured if name.startswith("ce_") or name == "loss_recovered"]
    with opened.database.read() as sql:
        row = sql.query(tables.Prediction).filter_by(run_id=run_id).order_by(tables.Prediction.item).first()
        item, ply = row.item, row.detail["plies"][0]
    frame = build_unit_frames(opened.inputs, run_id, 0, item)[0]
    assert frame.caption[0].split()[0] == chess_board_after(opened, row.detail["games"][0], ply)


def chess_board_after(session: Session, game: int, ply: int) -> str:
    """The pieces of a FEN."""
    (packed,) = session.dataset("sample").moves([game])
    board = chess.Board()
    for move in unpack_moves(packed)[:ply]:
        board.push(move)
    return board.board_fen()
