"""Board views of a score: a probe's reading of each position of a game, compared with the true board."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np

from chessreg.experiments.probe.data import Labelling, ProbeData, RowSelection, resolve_label
from chessreg.experiments.probe.reading import iterate_game_logits, prepare_reading
from chessreg.experiments.probe.rows import encode_cached_sites
from chessreg.experiments.probe.spec import get_shared_settings
from chessreg.games.boards.boardframe import BoardFrame, Mark, ProbeReading
from chessreg.games.datasets import labels
from chessreg.games.datasets.labels import Label
from chessreg.games.datasets.skill import SkillReport
from chessreg.registry import tables
from chessreg.runs.fitted import FittedProbe, load_probe
from chessreg.runs.inputs import Inputs


def build_score_frames(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """Return one frame per site of the game: the position, with wrong squares marked and confidence as heat."""
    with inputs.database.read() as session:
        run = session.get_one(tables.Run, UUID(str(row["run_id"])))
        spec = get_shared_settings(run.spec)
        reference = f"run:{run.spec_hash}"
    is_test_cache = bool(row["split"] == "test" and spec.test_cache)
    probe = load_probe(inputs, reference, int(row["layer"]))
    data = ProbeData.load(
        inputs,
        spec.test_cache if is_test_cache and spec.test_cache else spec.cache,
        Labelling(
            spec.label,
            spec.skill,
            spec.seed,
            skill_report=SkillReport(**probe.detail["skill"]) if "skill" in probe.detail else None,
        ),
        "test_cache" if is_test_cache else "cache",
        selection=RowSelection.from_spec(spec),
        game=int(row["item"]),
        pattern=spec.hook_point,
    )
    return build_reading_frames(inputs, *prepare_reading(inputs, reference, probe, data), int(row["item"]))


def build_reading_frames(
    inputs: Inputs, probe: FittedProbe, data: ProbeData, game: int, centre: bool = False
) -> list[BoardFrame]:
    """Return a probe's readings of the positions of one game of a cache, compared with the truth if it is known."""
    label = resolve_label(probe.label, probe.weight.shape[-1])
    has_known_labels = label.source == "position" or data.skill is not None
    token_names, item_noun = name_tokens(inputs, data, game), data.items.content.removesuffix("s")
    views = []
    for reading in iterate_game_logits(
        probe.reader(), data, data.rows & (data.item == game), probe.layer, centre=centre
    ):
        plies = data.ply[reading.rows]
        (_, positions), *_ = labels.iterate_positions(data.items, data.item[reading.rows], plies)
        for logits, at, board, ply in zip(reading.logits, reading.rows, positions.boards, plies.tolist(), strict=True):
            squares, title = (
                format_board_letters(board),
                f"{item_noun} {game}, {token_names.get(int(at), '')}ply {ply}: layer {probe.layer} reads",
            )
            if label.source == "rating":
                elo = float(logits[0, 0]) * probe.detail["std"] + probe.detail["mean"]
                truth = f", true value {data.labels[at, 0]:.0f}" if has_known_labels else ""
                view = BoardFrame(f"{title} {elo:.0f} Elo{truth}", squares)
            else:
                truths = data.labels[at] if has_known_labels else None
                view = build_probe_frame(title, squares, label, softmax_logits(logits), truths)
            views.append(replace(view, ply=ply))
    return views


def name_tokens(inputs: Inputs, data: ProbeData, game: int) -> dict[int, str]:
    """Return row → the token that the probe reads, with its phase: `token 2 e4 (white-destination), `.

    It is empty if the phases only name the side to move.
    """
    encoding = inputs.encoding(data.cache.checkpoint)
    if len(encoding.phases) <= 2 or data.items.content == "positions":
        return {}
    phase = data.phase
    if phase is None:
        phase = encode_cached_sites(inputs, encoding, data.cache, None, game).phase
    tokens = encoding.games(data.items, np.array([game])).item(0)
    rows = np.flatnonzero(data.item == game)
    return {
        row: f"token {token} {encoding.vocabulary[tokens[token]]} ({encoding.phases[phase[row]]}), "
        for row, token in zip(rows.tolist(), data.cache.array.token[rows].tolist(), strict=True)
    }


def build_probe_frame(
    title: str, squares: str, label: Label, probability: np.ndarray, truth: np.ndarray | None
) -> BoardFrame:
    """Return one position: probability float [squares, classes] of the probe, classes int8 [squares] of the true board,
    or None if unknown."""
    read_classes = probability.argmax(-1)
    if truth is None or len(truth) == 1:
        name, confidence = label.classes[read_classes[0]], probability[0, read_classes[0]]
        true_value_text = "" if truth is None else f", true value {label.classes[truth[0]]}"
        return BoardFrame(f"{title} {label.name} {name} ({confidence:.0%}){true_value_text}", squares)
    wrong: dict[int, Mark] = {int(s): "wrong" for s in np.flatnonzero(read_classes != truth)}
    return BoardFrame(
        title=f"{title} {64 - len(wrong)} of 64 squares",
        squares=squares,
        marks=wrong,
        read={s: ProbeReading(label.classes[read_classes[s]], float(probability[s, read_classes[s]])) for s in wrong},
        heat={s: float(probability[s, truth[s]]) for s in range(64)},
        heat_label="probability of the true class",
        heat_range=(1.0, 0.0),
    )


def softmax_logits(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def format_board_letters(values: np.ndarray) -> str:
    """Return the 64 piece letters of a board of signed piece values int8 [64], a1 first."""
    return "".join("kqrbnp.PNBRQK"[value + 6] for value in values.tolist())
