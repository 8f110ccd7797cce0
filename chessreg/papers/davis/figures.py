"""Figures that are not plots of a table: distributions over cases, boards of a case, squares before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from chessreg.errors import NotFoundError
from chessreg.papers.davis.edits import CODE_SCALE, EDITS_STEP, FIGURE_4_STEP, compute_code_layer, get_chosen_edit
from chessreg.papers.plan import CompleteSteps

if TYPE_CHECKING:
    from chessreg.queries.result import QueryResult

MASS_QUERY, LAYER_QUERY, SQUARE_QUERY = (
    "legal move mass by edit",
    "legal move mass by layer",
    "legal move mass by square",
)
PANEL_HEIGHT_IN = 3.4  # inches
FIGURE_5_TYPES = {"original": ("None", "Random", "Probe", "Patch"), "target": ("Probe",), "future": ("Patch",)}
FIGURE_6_TYPES = {"original": ("None", "CD-Probe", "SAE-Probe"), "target": ("None", "CD-Probe", "SAE-Probe")}
PanelMasses = dict[str, list[tuple[str, np.ndarray]]]
"""Panel → labels and masses float64 [cases]."""


def draw_edit_masses(steps: CompleteSteps, path: Path) -> str:
    """Draw Figure 5: mass on the original, target and later board over cases, at the code's α. Return its command."""
    return draw_masses_by_type(steps, path, FIGURE_5_TYPES)


def draw_latent_edit_masses(steps: CompleteSteps, path: Path) -> str:
    """Draw Figure 6: mass of edits by probes of latents, over cases, at the code's α. Return its command."""
    return draw_masses_by_type(steps, path, FIGURE_6_TYPES)


def draw_masses_by_type(steps: CompleteSteps, path: Path, types_by_panel: Mapping[str, tuple[str, ...]]) -> str:
    """Draw the legal move mass by type of edit and board, and return the command that prints the same numbers."""
    answer, masses = steps.query(MASS_QUERY, EDITS_STEP), PanelMasses()
    places = {row["type"]: place for place, row in enumerate(answer.rows) if row["scale"] in (None, CODE_SCALE)}
    for board, types in types_by_panel.items():
        masses[board] = [
            (name, read_case_masses(steps, MASS_QUERY, EDITS_STEP, places[name], board))
            for name in types
            if name in places
        ]
    draw_violins(masses, path, f"probability of legal moves on each board, over cases; α = {CODE_SCALE:g}")
    return f'chessreg query "{MASS_QUERY}" --run {steps.run_id(EDITS_STEP)[-6:]}'


def draw_ridge_plot(steps: CompleteSteps, path: Path) -> str:
    """Draw the mass on the target board by edited layer. Return the command that prints the rows."""
    step, points = "edits-by-layer", []
    for place, row in enumerate(steps.query(LAYER_QUERY, step).rows):
        if row["type"] == "Probe":
            points.append((str(row["layer"]), read_case_masses(steps, LAYER_QUERY, step, place, "target")))
    draw_violins({"target, by edited layer": points}, path, f"type Probe, over cases; α = {CODE_SCALE:g}")
    return f'chessreg query "{LAYER_QUERY}" --run {steps.run_id(step)[-6:]}'


def read_case_masses(steps: CompleteSteps, query: str, step: str, place: int, board: str) -> np.ndarray:
    """Return the masses on one board behind row `place` (from 0) of a query: float64 [cases]."""
    from chessreg.queries.ask import query_rows_behind

    rows_behind: QueryResult = query_rows_behind(steps.session.database, query, place + 1, run=(steps.run_id(step),))
    return np.array([value for value in rows_behind.table[board].to_pylist() if value is not None], np.float64)


def draw_violins(masses: PanelMasses, path: Path, title: str) -> None:
    """Draw violins with their medians. Raises NotFoundError if no panel has a case."""
    from matplotlib.figure import Figure

    from chessreg.queries import plot

    masses = {board: [each for each in parts if len(each[1])] for board, parts in masses.items()}
    masses = {board: parts for board, parts in masses.items() if parts}
    if not masses:
        raise NotFoundError("no case has a mass on these boards", "use a larger --size")
    widths = [0.5 + 0.55 * len(parts) for parts in masses.values()]
    figure = Figure(figsize=(1.2 * sum(widths) + 1.0, PANEL_HEIGHT_IN), layout="constrained")
    axes = figure.subplots(1, len(masses), squeeze=False, sharey=True, width_ratios=widths)[0]
    for axis, (board, parts) in zip(axes, masses.items(), strict=True):
        # a density needs two different values
        spread = [values if np.ptp(values) > 0 else np.array([values[0], values[0] + 1e-6]) for _, values in parts]
        axis.violinplot(spread, showmedians=True, showextrema=False)
        axis.set_xticks(range(1, len(parts) + 1), [label for label, _ in parts], rotation=20 * (len(parts) > 3))
        axis.set_title(board, fontsize="medium")
        axis.set_ylim(-0.02, 1.02)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("legal move mass")
    figure.suptitle(title, fontsize="small")
    plot.write_figure(figure, path)


def draw_square_maps(steps: CompleteSteps, path: Path) -> str:
    """Draw the maps of the ICMLA paper to `path`: mean mass on the target board by piece and square, type Probe, chosen
    α. Return the command that prints the numbers."""
    from chessreg.games.boards.picture import HeatPanel, save_heatmaps

    best_settings = get_chosen_edit(steps)
    panels: dict[str, np.ndarray] = {}
    for row in steps.query(SQUARE_QUERY, EDITS_STEP).rows:
        if row["type"] == "Probe" and row["scale"] == best_settings["scale"] and row["target"] is not None:
            board = panels.setdefault(row["piece"], np.full(64, np.nan))
            file, rank = row["square"]
            board[8 * (int(rank) - 1) + ord(file) - ord("a")] = row["target"]
    if not panels:
        raise NotFoundError("no edit removed a piece", "use a larger --size")
    pieces = [piece for piece in "PNBRQKpnbrqk" if piece in panels]
    save_heatmaps(
        [HeatPanel(piece, panels[piece], 0.0, 1.0) for piece in pieces], path,
        f"mass on the board without the piece, by its square; α = {best_settings['scale']:g}",
        columns=min(6, len(pieces)),
    )  # fmt: skip
    return f'chessreg query "{SQUARE_QUERY}" --run {steps.run_id(EDITS_STEP)[-6:]}'


def draw_case_boards(steps: CompleteSteps, path: Path) -> str:
    """Draw Figure 3: original, target and later board of the first case. Return its command."""
    from chessreg.experiments.edit.three_boards import build_case_frames
    from chessreg.games.boards.picture import render_svg
    from chessreg.queries.render import write_file

    run_id = UUID(steps.run_id(EDITS_STEP))
    unit = find_first_case(steps, run_id)
    frames = build_case_frames({"run_id": run_id, "unit": unit}, steps.session.inputs)[1:]
    boards = [render_svg(frame).replace("<svg ", f'<svg x="{420 * number}" ', 1) for number, frame in enumerate(frames)]
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{420 * len(boards)}" height="520">{"".join(boards)}</svg>'
    )
    write_file(path, picture.encode())
    return f"chessreg board {run_id.hex[-6:]}:{unit}"


def find_first_case(steps: CompleteSteps, run_id: UUID) -> int:
    """Return the first edited unit of a run. Raises NotFoundError if every prefix was skipped."""
    from sqlalchemy import select

    from chessreg.registry import tables

    trial = tables.Trial
    cases = select(trial.unit).where(trial.run_id == run_id, trial.condition == "clean").order_by(trial.unit).limit(1)
    with steps.session.database.read() as sql:
        unit = sql.scalars(cases).first()
    if unit is None:
        raise NotFoundError("every prefix was skipped", "use a larger --size")
    return unit


def draw_case_squares(steps: CompleteSteps, path: Path) -> str:
    """Draw Figure 4: probability of each square as the next origin, before and after the edit. Return the command that
    shows the board.
    """
    from chessreg.experiments.edit.spec import CLEAN, NextTokenEditSpec
    from chessreg.experiments.edit.three_boards import load_square_probabilities
    from chessreg.games.boards.boardframe import get_board_letters
    from chessreg.games.boards.picture import HeatPanel, save_heatmaps
    from chessreg.registry import tables

    run_id, best_settings = UUID(steps.run_id(FIGURE_4_STEP)), get_chosen_edit(steps)
    with steps.session.database.read() as sql:
        spec = NextTokenEditSpec(**sql.get_one(tables.Run, run_id).spec)
    find_first_case(steps, run_id)
    alpha = best_settings["scale"] or CODE_SCALE
    squares: dict[str, Any] = load_square_probabilities(steps.session.inputs, spec, run_id, 0)
    layer = compute_code_layer(steps.request.layers)
    after = squares[f"edit-{layer * len(spec.scales) + spec.scales.index(alpha)}"]
    original, target = build_case_boards()
    panels = [
        HeatPanel(f"before: e4 {squares[CLEAN][28]:.1%}, d2 {squares[CLEAN][11]:.1%}", squares[CLEAN], 0.0, 1.0,
                  get_board_letters(original)),
        HeatPanel(f"after, α = {alpha:g}: e4 {after[28]:.1%}, d2 {after[11]:.1%}", after, 0.0, 1.0,
                  get_board_letters(target)),
    ]  # fmt: skip
    save_heatmaps(panels, path, f"layer {layer}; the paper: e4 75.8 % before, d2 76 % after")
    return f"chessreg board {run_id.hex[-6:]}:0"


def build_case_boards() -> Sequence[Any]:
    """Return the board of Figure 4 before and after the edit."""
    import chess

    from chessreg.games.boards.typed import parse_typed_sans, play_sans
    from chessreg.games.datasets.labels import parse_board_changes
    from chessreg.papers.davis.edits import FIGURE_4_CASE

    original = play_sans(parse_typed_sans(FIGURE_4_CASE["moves"]))
    target = original.copy(stack=False)
    for square, letter in parse_board_changes(FIGURE_4_CASE["board"]):
        target.set_piece_at(square, None if letter == "." else chess.Piece.from_symbol(letter))
    return original, target
