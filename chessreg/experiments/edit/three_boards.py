"""The boards of an edit that reads the next token: original, target and later, with the probability of every square.

The distributions over the next token, for every case and condition, are an output of the run. Each group of units is
one artifact: `probabilities.safetensors` with `probabilities` float32 [case, condition, output] and `unit` int64
[case]. The metadata has the names of the conditions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
import numpy as np
from sqlalchemy import select

from chessreg.errors import DAMAGE_ERRORS, BadInputError, NotFoundError, get_first_line, reraise_lack_of_memory
from chessreg.experiments.edit.spec import CLEAN, NextTokenEditSpec
from chessreg.experiments.edit.states import describe_skip
from chessreg.games.boards.boardframe import BoardFrame, Mark
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from chessreg.runs.task import Task


HEAT_LABEL = "probability that the next move begins on the square"
MASS_COLUMNS = {
    "original": "mass_original",
    "target": "mass_modified",
    "later": "mass_future",
}  # board → column of a trial


@dataclass(frozen=True, eq=False)
class StoredCase:
    """The stored results of one case.

    `boards` by name: original, target and, if the game continued, later. `rows` by condition, the clean one first.
    `squares`: the probability float64 [64] that the next move begins on each square, for conditions whose distributions
    are in the store. A skipped case has only the original board, and a single row with the reason.
    """

    spec: NextTokenEditSpec
    location: str
    boards: Mapping[str, chess.Board]
    rows: Mapping[str, tables.Trial]
    squares: Mapping[str, np.ndarray]

    @property
    def skip_reason(self) -> str:
        """The reason why the case was skipped, as text; empty for an edited case."""
        row = self.rows.get("skipped")
        return "" if row is None else describe_skip(row)

    @property
    def conditions(self) -> list[str]:
        """The conditions that change the model."""
        return [name for name in self.rows if name not in (CLEAN, "skipped")]

    def compute_legal_mass(self, condition: str, board: str) -> float:
        """Return the probability of the tokens that begin a legal move on a board (LMPM, Davis 2026, section 3.6)."""
        row, column = self.rows[condition], MASS_COLUMNS[board]
        value: float = (row.detail or {})[column] if board == "later" else getattr(row, column)
        return value

    def mark_changed_squares(self, board: str) -> dict[int, Mark]:
        """Return marks of the squares in which original and target differ."""
        original, target = self.boards["original"], self.boards.get("target", self.boards["original"])
        changed_squares = [s for s in chess.SQUARES if target.piece_at(s) != original.piece_at(s)]
        if board == "original":
            return {square: "from" for square in changed_squares if original.piece_at(square)}
        if board == "target":
            return {square: "removed" if target.piece_at(square) is None else "target" for square in changed_squares}
        return {}

    def draw_frame(self, board: str, condition: str, title: str) -> BoardFrame:
        """Return a board under a condition, with the probabilities of its squares as heat and the mass as caption."""
        heat = self.squares.get(condition)
        return BoardFrame.from_board(
            self.boards[board],
            title=title,
            marks=self.mark_changed_squares(board),
            heat=None if heat is None else heat.tolist(),
            heat_label="" if heat is None else HEAT_LABEL,
            caption=(self.describe_masses(board, condition),),
        )

    def describe_masses(self, board: str, condition: str) -> str:
        """Return the masses of the clean and of the edited model, and the most probable squares, as text."""
        values = [self.compute_legal_mass(name, board) for name in dict.fromkeys((CLEAN, condition))]
        text = f"legal mass {' to '.join(f'{value:.3f}' for value in values)}"
        if condition not in self.squares:
            return f"{text}; likeliest {self.rows[condition].text}"
        squares = self.squares[condition]
        order = np.argsort(-squares, kind="stable")[:3]
        return f"{text}; likeliest {', '.join(f'{chess.square_name(int(s))} {squares[s]:.1%}' for s in order)}"


def load_stored_case(inputs: Inputs, run_id: UUID, unit: int) -> StoredCase:
    """Return the stored results of a unit of a run that reads the next token. Raises NotFoundError for an unknown
    unit."""
    trial = tables.Trial
    with inputs.database.read() as session:
        rows = session.scalars(
            select(trial).where(trial.run_id == run_id, trial.unit == unit).order_by(trial.condition)
        ).all()
        spec = NextTokenEditSpec(**session.get_one(tables.Run, run_id).spec)
        session.expunge_all()
    if not rows:
        raise NotFoundError(f"the run has no state {unit}", "chessreg runs show RUN")
    first_row = next(row for row in rows if row.fen)
    location = f"game {first_row.item}, ply {first_row.ply}" if first_row.item >= 0 else f"after {first_row.ply} plies"
    boards, detail = {"original": chess.Board(first_row.fen)}, first_row.detail or {}
    by_condition = {row.condition: row for row in sorted(rows, key=lambda row: row.condition != CLEAN)}
    if first_row.condition == "skipped":
        return StoredCase(spec, location, boards, by_condition, {})
    for name in ("target", "later"):
        if detail.get(name):
            boards[name] = chess.Board(detail[name])
    return StoredCase(spec, location, boards, by_condition, load_square_probabilities(inputs, spec, run_id, unit))


def build_case_frames(row: Mapping[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """Return the original board before the edit, then the original, target and later board after it.

    A skipped case has one board. Heat shows the probabilities of all squares, if they are in the store.
    """
    case = load_stored_case(inputs, UUID(str(row["run_id"])), int(row["unit"]))
    if case.skip_reason:
        return [BoardFrame.from_board(case.boards["original"], title=case.location, caption=(case.skip_reason,))]
    condition = row.get("condition") or CLEAN
    if condition == CLEAN:
        condition = next(name for name in case.conditions if name.startswith("edit"))
    board_names = {"original": "the original board", "target": "the target board", "later": "the game's later board"}
    frames = [case.draw_frame("original", CLEAN, f"clean, {case.location}")]
    return frames + [case.draw_frame(name, condition, f"{condition}, {board_names[name]}") for name in case.boards]


def load_square_probabilities(
    inputs: Inputs, spec: NextTokenEditSpec, run_id: UUID, unit: int
) -> dict[str, np.ndarray]:
    """Return condition → probability float64 [64] that the next move begins on each square; empty if not in the
    store."""
    try:
        probabilities = load_probabilities(inputs, run_id, unit)
        encoding = inputs.encoding(spec.checkpoint)
    except NotFoundError:
        return {}
    squares = {}
    for condition, values in probabilities.items():
        squares[condition] = np.zeros(64)
        for number, probability in enumerate(values.astype(np.float64).tolist()):
            origin = encoding.find_origin(number)
            if origin is not None:
                squares[condition][origin] += probability
        squares[condition] = squares[condition].clip(0.0, 1.0)
    return squares


ARTIFACT_KIND = "probabilities"
PROBABILITIES_FILE = f"{ARTIFACT_KIND}.safetensors"


def write_probabilities(
    task: Task[Any, Any], first_unit: int, units: Sequence[int], conditions: Sequence[str], values: np.ndarray
) -> None:
    """Publish the probabilities float32 [case, condition, output] of a group of units. `first_unit` is its first."""
    with task.output(f"{ARTIFACT_KIND}-{first_unit}", first_unit, ARTIFACT_KIND) as folder:
        write_probability_group(folder / PROBABILITIES_FILE, units, conditions, values)


def write_probability_group(path: Path, units: Sequence[int], conditions: Sequence[str], values: np.ndarray) -> None:
    """Write `values` [units, conditions, 64], the probability that the next move begins on each square, as a
    safetensors file."""
    from safetensors.numpy import save_file

    arrays = {ARTIFACT_KIND: np.ascontiguousarray(values, "<f4"), "unit": np.asarray(units, "<i8")}
    save_file(arrays, path, {"conditions": json.dumps(list(conditions))})


def load_probabilities(inputs: Inputs, run_id: UUID, unit: int) -> dict[str, np.ndarray]:
    """Return condition → probabilities float32 [output] of the next token, for one unit of a run.

    Raises NotFoundError if the run did not store them, or if their bytes are on another machine.
    """
    output = tables.Output
    with inputs.database.read() as session:
        rows = session.execute(
            select(output.name, output.unit, output.digest)
            .where(output.run_id == run_id, output.unit <= unit, output.name.like(f"{ARTIFACT_KIND}-%"))
            .order_by(output.unit.desc())
        ).all()
    for _, _, digest in rows:
        if not inputs.store.exists(digest):
            continue
        case = read_case_probabilities(inputs.store.path(digest) / PROBABILITIES_FILE, unit)
        if case is not None:
            return case
    raise NotFoundError(f"the probabilities of unit {unit} are not in this store", "chessreg pull --help")


def read_case_probabilities(path: Path, unit: int) -> dict[str, np.ndarray] | None:
    """Return condition → probabilities float32 [output] of one unit in the file at `path`; None if the unit is missing.

    The file may come from another machine. Raises BadInputError if it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            conditions, units = json.loads(file.metadata()["conditions"]), file.get_tensor("unit")
            values = file.get_slice(ARTIFACT_KIND)
            cases, condition_count, _ = values.get_shape()
            if (units.shape, len(conditions), values.get_dtype()) != ((cases,), condition_count, "F32"):
                raise ValueError("its arrays and conditions do not match")
            [places] = np.nonzero(units == unit)
            return dict(zip(conditions, values[int(places[0])], strict=True)) if len(places) else None
    except (OSError, SafetensorError, *DAMAGE_ERRORS) as error:  # type: ignore[misc]
        reraise_lack_of_memory(error)
        message = f"{path} is damaged: {type(error).__name__} {get_first_line(error)}"
        raise BadInputError(message, "chessreg doctor --digests") from error
