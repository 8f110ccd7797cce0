"""Board edits: CPU seconds a state against the author's way, and how much of the time is forward passes.

    python tests/benchmarks/bench_edit.py [--states 48] [--threads 1] [--plain-states 4] [--positions all]

The author's method, reimplemented from `board_state_interventions.py` and `get_model_move`: for each state one greedy
text and five sampled ones of the clean model, and the same number of the edited one, each at batch 1; every character
is one pass of the whole text through the network as TransformerLens runs it, with logits at every token, until a space,
at most seven. Where ours differs: the states of a batch run side by side, the texts of a state share the pass of its
prompt and keep keys and values, and of no token but the last are logits computed. Both draw with the same numbers, so
they write the same texts, but where two are all but equally likely. Ours also gives the exact probability of a legal
move in canonical spelling; with --spellings that of every spelling too. His own loop around the stand-in's network
takes 322 to 340 ms of CPU for a greedy text after 364 characters, the stand-in 332 to 351.

`forward share` is the time of the model's own forward passes over the time of the batch; the rest is chess, bookkeeping
and sampling. Goals: 10 times the states per second, and 60 % of the time in forward passes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from authors_model import FoldedModel

from chessreg.entities.adding import add_sample
from chessreg.entities.checkpoint import import_reference
from chessreg.entities.dataset import split_dataset
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.edit.editor import Editor
from chessreg.experiments.edit.spec import EditOptions, EditSpec
from chessreg.experiments.edit.states import State, build_states, remove_moving_piece
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.settings.games import select_games
from chessreg.models.decoding.sampling import draw_tokens
from chessreg.models.edits import ResidualEdit
from chessreg.models.language_model import LanguageModel
from chessreg.noise import uniform
from chessreg.session import Session, open_session

LAYERS, SCALE, AUTHORS_TOKENS = (3, 4, 5, 6), 50.0, 7


class Sink:
    """Replaces a task: keeps the rows instead of writing them."""

    def __init__(self, spec: EditSpec, session: Session, threads: int) -> None:
        self.spec, self.options, self.inputs = spec, EditOptions(threads=threads, device="cpu"), session.inputs
        self.rows: list[dict[str, Any]] = []

    def record(self, table: str, **columns: Any) -> None:
        pass

    def emit(self, family: str, unit: int, detail: Any = None, **columns: Any) -> None:
        self.rows.append({"unit": unit, "detail": detail, **columns})


def plain_text(
    network: FoldedModel,
    stops: frozenset[int],
    prompt: list[int],
    edits: list[ResidualEdit],
    key: tuple[Any, ...] | None,
    limit: int,
) -> list[int]:
    """One text, the whole context recomputed for every character. Without a key greedily."""
    written: list[int] = []
    for step in range(limit):
        logits = network.logits(torch.tensor([prompt + written]), edits)[0, -1]
        logprobs = torch.log_softmax(logits.float(), -1)[None].numpy()
        noise = uniform(*key, step) if key else 0.0
        token = int(draw_tokens(logprobs, np.array([1.0 if key else 0.0]), np.array([noise]))[0])
        if token in stops:
            break
        written.append(token)
    return written


def plain_way(network: FoldedModel, editor: Editor, chosen: list[State]) -> dict[tuple[int, str, int], str]:
    """Texts by (unit, condition, sample), as board_state_interventions.py writes them."""
    encoding, spec = editor.encoding, editor.spec
    found: dict[tuple[int, str, int], str] = {}
    [condition] = editor.removals.list_conditions()
    for state in chosen:
        prompt = list(state.prompt)
        edits: list[ResidualEdit] = []
        for name in ("clean", "edit"):
            for sample in range(-1, spec.samples):
                key = None if sample < 0 else (spec.seed, "edit", state.unit, sample)
                ids = plain_text(network, encoding.stop_ids, prompt, edits, key, spec.max_tokens)
                found[state.unit, name, sample] = encoding.decode(ids)
                if name == "clean" and sample < 0:
                    move = encoding.parse(found[state.unit, name, sample], state.board)
                    assert move is not None
                    removed = remove_moving_piece(state, move)
            edits = editor.removals.build_edits(condition, [prompt], [removed])
    return found


@contextmanager
def forward_clock(model: LanguageModel) -> Iterator[SimpleNamespace]:
    """CPU seconds spent in the model's forward passes, its head included."""
    clock = SimpleNamespace(seconds=0.0, began=0.0, tokens=0)

    def timed(method: Any, tokens: bool) -> Any:
        def call(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return method(*arguments)
            finally:
                clock.seconds += time.process_time() - began
                clock.tokens += arguments[0].numel() if tokens else 0

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.network, "hidden", timed(model.network.hidden, True))
        patch.setattr(model.network, "unembed", timed(model.network.unembed, False))
        yield clock


def bench(session: Session, arguments: argparse.Namespace) -> dict[str, Any]:
    inputs = session.inputs
    spec = EditSpec(
        checkpoint=inputs.reference("checkpoint", "reference"),
        probe=inputs.reference("run:probe", "board"),
        dataset=inputs.reference("dataset", "sample:test"),
        games=4 * arguments.states,
        per_game=1,
        layers=LAYERS,
        scale=SCALE,
        token_mask=arguments.positions,
        random_controls=0,
        shuffled_label_controls=0,
        max_tokens=AUTHORS_TOKENS,
        spellings=arguments.spellings,
    )
    sink = Sink(spec, session, arguments.threads)
    editor = Editor(sink)  # type: ignore[arg-type]
    games, places = select_games(spec, inputs)
    candidates = build_states(spec, editor.encoding, games, places, range(spec.games))
    editor.emit_states(candidates[:4])  # warm
    sink.rows.clear()
    editor.emit_states(candidates)
    kept = {row["unit"] for row in sink.rows if row["condition"] == "clean"}
    chosen = [state for state in candidates if state.unit in kept][: arguments.states]

    by_length = sorted(
        chosen, key=lambda state: len(state.prompt)
    )  # his time grows with it: as long as all, on average
    middles = (np.arange(arguments.plain_states) + 0.5) / arguments.plain_states
    some = [by_length[place] for place in (middles * len(chosen)).astype(int)]
    batches = [chosen[start : start + arguments.batch] for start in range(0, len(chosen), arguments.batch)]
    sink.rows.clear()
    theirs: dict[tuple[int, str, int], str] = {}
    network, ours = FoldedModel(editor.model), 0.0
    rounds: list[float] = []
    clocks = SimpleNamespace(ours=0.0, ours_tokens=0)
    for number, batch in enumerate(batches):  # in turns, so that other work on the machine disturbs both alike
        with forward_clock(editor.model) as clock:
            began = time.process_time()
            editor.emit_states(batch)
            ours += time.process_time() - began
        clocks.ours, clocks.ours_tokens = clocks.ours + clock.seconds, clocks.ours_tokens + clock.tokens
        for state in some[number :: len(batches)]:
            began = time.process_time()
            theirs |= plain_way(network, editor, [state])
            rounds.append(time.process_time() - began)
    plain = sum(rounds)
    mine = {(row["unit"], row["condition"], row["sample"]): row["text"] for row in sink.rows}
    same = sum(mine[key] == text for key, text in theirs.items())
    ratio = (plain / len(some)) / (ours / len(chosen))
    return {
        "states": len(chosen),
        "mean_prompt": [round(float(np.mean([len(state.prompt) for state in part]))) for part in (chosen, some)],
        "texts_equal": f"{same} of {len(theirs)}",
        "ms_a_state": round(1000 * ours / len(chosen), 1),
        "plain_ms_a_state": round(1000 * plain / len(some), 1),
        "tokens_a_state": round(clocks.ours_tokens / len(chosen)),
        "plain_ms_of_states": [round(1000 * seconds) for seconds in sorted(rounds)],
        "ratio": round(ratio, 1),
        "forward_share": round(clocks.ours / ours, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--states", type=int, default=64)
    parser.add_argument("--plain-states", type=int, default=6)
    parser.add_argument("--batch", type=int, default=EditOptions().batch_states)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--positions", choices=["all", "last"], default="all")
    parser.add_argument("--spellings", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder, open_session(f"{folder}/r.db", f"{folder}/s") as session:
        add_sample(session.database, session.store, name="sample")
        split_dataset(session.database, session.store, "sample", "fit=0.6,test=0.4", seed=0)
        import_reference(session.database, session.store, name="reference")
        session.run(CacheSpec(checkpoint="reference", dataset="sample:fit", games=40, max_sites=33), name="fit")
        session.run(ProbeSpec(cache="fit", epochs=1, layers=LAYERS), name="board")
        found = bench(session, arguments)
    print(json.dumps(found))
    print(
        f"board edits: {found['ratio']} x per state (goal 10), {found['forward_share']:.0%} of the time in forward "
        "passes (goal 60 %)"
    )


if __name__ == "__main__":
    main()
