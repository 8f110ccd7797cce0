"""Contrastive vectors of all layers in one pass, against the plain way and against bare forward passes.

    python tests/benchmarks/bench_vector.py [--games 120] [--threads 1]

The plain way is the author's loop (Karvonen specification 5.1 and 9.1): for every layer the model and the games are
loaded and encoded again and the whole network, output head and all, runs over one game at a time. It is timed with the
model object that is loaded already, on a part of the games and layers, and scaled; loading is timed once and added for
each layer. The bound is the transformer's blocks over the same tokens in the same batches, and nothing else.

Goals: at least 8 times faster than the plain way; at least 60 % of the speed of bare forward passes.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np
import torch

from chessreg.encodings.pgn_char import PgnChar
from chessreg.entities.adding import add_sample
from chessreg.entities.checkpoint import import_reference
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.experiments.vector import VectorHow, VectorSpec
from chessreg.experiments.vector.contrast import gather
from chessreg.models.devices import prepare
from chessreg.models.language_model import LanguageModel
from chessreg.runs.resolve import with_references
from chessreg.session import open_session

AUTHORS_LENGTH = 364  # tokens of each game that the author's code runs


def plain_layer(model: LanguageModel, texts: list[str], classes: np.ndarray, layer: int) -> np.ndarray:
    """The difference of one layer, a game at a time, the whole network each time; float64 [d_model]."""
    pgn = PgnChar()
    sums, games = np.zeros((2, model.d_model)), np.zeros(2)
    kept: list[torch.Tensor] = []
    handle = model.blocks[layer].register_forward_hook(lambda block, given, residual: kept.append(residual))
    for text, k in zip(texts, classes.tolist(), strict=True):
        kept.clear()
        sites = pgn.sites("dots", pgn.texts([text]))
        characters, plies = sites.token, sites.ply
        tokens = torch.from_numpy(pgn.encode(text[:AUTHORS_LENGTH]).astype(np.int64))[None]
        with torch.inference_mode():
            model.network.hidden(tokens)
        at = characters[(plies >= 50) & (plies <= 64)]
        sums[k] += kept[0][0, at[at < tokens.shape[1]]].double().sum(0).numpy()
        games[k] += 1
    handle.remove()
    return sums[1] / games[1] - sums[0] / games[0]


@torch.inference_mode()
def bare_passes(model: LanguageModel, texts: list[str], batch: int) -> float:
    """Seconds for the blocks alone over the tokens that our pass needs, batched as it batches them."""
    pgn = PgnChar()
    rows = []
    for text in texts:
        sites = pgn.sites("dots", pgn.texts([text]))
        characters, plies = sites.token, sites.ply
        rows.append(pgn.encode(text[: characters[plies <= 64][-1] + 1]))
    rows.sort(key=len)
    began = time.perf_counter()
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        tokens = torch.zeros(len(part), max(map(len, part)), dtype=torch.int64)
        for i, ids in enumerate(part):
            tokens[i, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
        model.network.hidden(tokens)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=120, help="of each class")
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_session(f"{folder}/r.db", f"{folder}/s") as session:
        add_sample(session.database, session.store, name="sample")
        import_reference(session.database, session.store, name="reference")
        settings = VectorSpec(
            checkpoint="reference", dataset="sample", positions="summed", first_ply=50, last_ply=64, whole_games=True,
            skill=SkillSettings(bins=4), per_class=given.games,
        )  # fmt: skip
        device = prepare("cpu", given.threads)
        model = session.model("reference", device)
        began = time.perf_counter()
        session.model("reference", device)
        loading = time.perf_counter() - began
        recipes = VectorSpec(**with_references(settings, session.inputs).model_dump())
        games = gather(recipes, session.inputs)
        texts = games.games.texts(games.places)

        best = {}
        for batch in (16, 32, 64):
            bound = bare_passes(model, texts, batch)
            began = time.perf_counter()
            report = session.run(
                settings.model_copy(update={"replicate": batch}), VectorHow(batch_games=batch, threads=given.threads)
            )
            best[batch] = time.perf_counter() - began, bound
            print(f"batch {batch:>3}: bare passes {bound:6.1f} s, run vector {best[batch][0]:6.1f} s ({report.state})")
        ours, bound = min(ran for ran, _ in best.values()), min(bare for _, bare in best.values())

        part = np.linspace(0, len(texts) - 1, min(24, len(texts))).astype(int)
        timed = []
        for layer in (0, model.n_layers - 1):
            began = time.perf_counter()
            plain_layer(model, [texts[i] for i in part], games.classes[part], layer)
            timed.append((time.perf_counter() - began) / len(part))
        running = float(np.mean(timed)) * len(texts) * model.n_layers
        plain = running + loading * model.n_layers
        layers, threads = model.n_layers, torch.get_num_threads()
        print(f"{len(texts)} games, {layers} layers, {threads} threads; loading the model {loading:.2f} s")
        print(f"plain way {plain:,.0f} s ({running:,.0f} s of it in the network), ours {ours:.1f} s")
        print(f"faster {plain / ours:.1f} times, without loading {running / ours:.1f} times (goal at least 8)")
        print(f"share of the forward-only bound {100 * bound / ours:.0f} % (goal at least 60)")


if __name__ == "__main__":
    main()
