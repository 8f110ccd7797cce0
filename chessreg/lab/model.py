"""The lab: a model in memory, its probes, and answers about one position after another.

The clean model's answer is kept while only the edit changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.edit.checks import ProbeMismatchError
from chessreg.experiments.edit.checks import check_edit_spec as check_edit
from chessreg.experiments.edit.editor import get_edit_scale, score_canonical_answers, sum_mass
from chessreg.experiments.edit.heat import load_edited_state
from chessreg.experiments.edit.model import PieceRemovals, compute_square_logits
from chessreg.experiments.edit.spec import EditSettings, EditSpec, NextTokenEditSpec, list_probed_layers
from chessreg.experiments.edit.states import NO_GAME, State, build_state_after, remove_moving_piece
from chessreg.games.boards.moves import convert_packed_to_sans, pack_moves
from chessreg.lab.answer import LabAnswer, ModelSide, RankedMove
from chessreg.lab.question import EDIT, LabPosition, StoredState, VectorScales
from chessreg.models.decoding.sampling import SampledText, sample_trees
from chessreg.models.decoding.session import open_decoding_session
from chessreg.models.decoding.tree import Prefix, TokenTree
from chessreg.models.hook_points import check_editable
from chessreg.models.language_model import LanguageModel
from chessreg.registry import tables
from chessreg.runs.fitted import FittedProbe, load_probe
from chessreg.runs.spec import get_field_reference
from chessreg.steering import interventions
from chessreg.steering.controls import PATCH
from chessreg.steering.interventions import InterventionSettings

if TYPE_CHECKING:
    from pathlib import Path

    from chessreg.encodings import Encoding
    from chessreg.entities.vector import RelativeNorm
    from chessreg.models.decoding.session import DecodingSession
    from chessreg.models.edits import ResidualEdit
    from chessreg.runs.inputs import Inputs


@dataclass(frozen=True)
class Scene:
    """A position with the model and the probes that read it."""

    model: LanguageModel
    board: chess.Board
    prompt: tuple[int, ...]
    probes: tuple[FittedProbe, ...]
    next_token: bool = False  # whether masses are of the tokens that begin a legal move, not of whole moves
    modified_board: chess.Board | None = None  # target board of the edit
    square: int | None = None  # of the removed piece, if the edit removes one

    @cached_property
    def answers(self) -> list[dict[Prefix, chess.Move]]:
        """The canonical answers of the original board and, if there is one, of the modified board: tokens → move."""
        boards = [self.board, *([self.modified_board] if self.modified_board else [])]
        return [{ids: move for move, ids in self.model.encoding.answers(board).items()} for board in boards]

    def sample_greedy(self, trees: TokenTree) -> SampledText:
        """Return the greedy text of a model on this board."""
        [[ids]] = sample_trees(trees, self.model.encoding, [self.board], [[(0,)]], temperature=[0.0])
        return ids

    def side(self, session: DecodingSession, edits: Sequence[ResidualEdit] = ()) -> ModelSide:
        """Return the model's texts, masses, moves and beliefs. `session` holds the prompt under these edits."""
        logits = np.zeros((0, 64, 13), np.float32)
        if self.probes:
            residuals = session.residuals([probe.layer for probe in self.probes])[:, 0]
            logits = compute_square_logits(residuals, self.model, self.prompt, self.probes, edits)
        trees = TokenTree(session)
        [probability] = score_canonical_answers(trees, [tuple(frozenset(answers) for answers in self.answers)])
        masses = [sum_mass(probability, frozenset(answers)) for answers in self.answers]
        first_probabilities = np.exp(trees.logprobs(0).astype(np.float64))
        if self.next_token:
            masses = [
                min(first_probabilities[sorted({ids[0] for ids in answers})].sum(), 1.0) for answers in self.answers
            ]
        token_ids = self.sample_greedy(trees)
        legal = self.model.encoding.parse(token_ids.tokens, self.board) is not None
        ranks, board = rank_moves(self.answers[0], probability, self.board), self.modified_board
        return ModelSide(
            token_ids.text,
            legal,
            float(masses[0]),
            float(masses[1]) if board else None,
            ranks,
            rank_moves(self.answers[1], probability, board) if board else (),
            softmax_float32(logits),
            sum_origin_probabilities(first_probabilities, self.model.encoding),
        )


class Lab:
    """Answers questions about positions of one registry and store, on the CPU."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._model: tuple[Path, LanguageModel] | None = None
        self._probes: tuple[str, tuple[FittedProbe, ...]] | None = None
        self._clean: tuple[LanguageModel, DecodingSession] | None = None
        self._side: tuple[object, ModelSide] | None = None

    def ask(self, question: LabPosition | StoredState) -> LabAnswer:
        """Return the beliefs and moves of the clean and of the edited model in a position or stored state.

        Raises NotFoundError for a run, checkpoint, layer or state that does not exist, and BadInputError for settings
        that do not fit together.
        """
        start = time.monotonic()
        answer = (
            self._answer_stored_state(question) if isinstance(question, StoredState) else self._answer_edit(question)
        )
        return replace(answer, seconds=time.monotonic() - start)

    def measure_scales(self, question: VectorScales) -> list[RelativeNorm]:
        """Return the norms of a run's vectors next to those of the model's residuals, as `measure_relative_norms`."""
        from chessreg.entities.vector import measure_relative_norms

        def load(checkpoint: str) -> LanguageModel:
            return self.model(self.inputs.checkpoint(self.inputs.reference("checkpoint", checkpoint))[1])

        return measure_relative_norms(self.inputs, question.run, load)

    def _answer_stored_state(self, question: StoredState) -> LabAnswer:
        """Return the answer for a stored state of an edit run."""
        place = load_edited_state(self.inputs, UUID(hex=question.run), question.unit, question.condition)
        probes = self.probes(place.spec.probe)
        board = place.state.board
        removal = place.removal
        scene = Scene(
            place.removals.model, board, place.state.prompt, probes, False, removal.modified_board, removal.square
        )
        moves = tuple(convert_packed_to_sans(pack_moves(board.move_stack)))
        return replace(self._answer(scene, place.edits, place.condition.name), sans=moves)

    def _answer_edit(self, question: LabPosition) -> LabAnswer:
        """Return the answer for a position and the edit that the question describes."""
        reference = self.inputs.reference("checkpoint", question.checkpoint)
        checkpoint, folder = self.inputs.checkpoint(reference)
        if question.probe is not None:
            self._check_probe(question, self.inputs.reference("run:probe", question.probe), checkpoint)
        model = self.model(folder)
        state = build_state(question, model.encoding)
        if len(state.prompt) + model.encoding.max_move_tokens - 1 > model.block_size:
            raise BadInputError(f"{state.ply} plies do not fit in this model's context", "take moves back")
        if state.board.is_game_over():
            raise BadInputError("the game is over in this position", "take a move back")
        probes = () if question.probe is None else self.probes(self.inputs.reference("run:probe", question.probe))
        scene = Scene(model, state.board, state.prompt, probes)
        scene = replace(scene, next_token=question.next_token)
        if question.vector is not None:
            answer = self._answer_steering(scene, question, reference)
        elif question.probe is not None and question.next_token:
            answer = self._answer_changes(scene, question, reference)
        elif question.probe is not None:
            answer = self._answer_removal(scene, question, reference)
        else:
            answer = self._answer(scene, [], why_not="choose a probe or a vector to edit with")
        return replace(answer, sans=tuple(question.moves.split()))

    def _check_probe(self, question: LabPosition, reference: str, checkpoint: tables.Checkpoint) -> None:
        """Raise BadInputError for a probe of another model, or without the layers to edit."""
        probes = self.probes(reference)
        fit_checkpoint = self.inputs.rows(tables.ProbeRecord, self.inputs.run(reference, "probe"))[0].checkpoint_id
        width = probes[0].weight.shape[0]
        if fit_checkpoint not in (None, checkpoint.id):
            raise BadInputError("the probe was fitted on another checkpoint", "chessreg probe list")
        if width != checkpoint.d_model:
            raise BadInputError(f"the probe reads d_model {width}, but the model has {checkpoint.d_model}")
        layers = [probe.layer for probe in probes]
        missing_layers = [layer for layer in question.layers if layer not in layers]
        if missing_layers and question.vector is None:
            raise BadInputError(
                f"no probe reads layer {missing_layers[0]}",
                f"the run has probes of layers {', '.join(map(str, layers))}",
            )

    def _answer_removal(self, scene: Scene, question: LabPosition, reference: str) -> LabAnswer:
        """Return the answer for subtracting the probe's direction of the piece that the clean model moves."""
        state = build_state(question, scene.model.encoding)
        ids = scene.sample_greedy(TokenTree(self._open_session(scene)))
        move = scene.model.encoding.parse(ids.tokens, state.board)
        if move is None:
            why_not = f"the model writes {ids.text.strip()!r}, which is not a legal move, so no piece can be removed"
            return self._answer(scene, [], why_not=why_not)
        spec = self._build_spec(question, reference)
        assert isinstance(spec, EditSpec)
        check_edit(spec, self.inputs)
        removals, removal = PieceRemovals(spec, self.inputs, "cpu", scene.model), remove_moving_piece(state, move)
        edits = removals.build_edits(removals.find_condition(question.condition), [scene.prompt], [removal])
        scene = replace(scene, modified_board=removal.modified_board, square=removal.square)
        return self._answer(scene, edits, describe_edit(question, scene))

    def _answer_changes(self, scene: Scene, question: LabPosition, reference: str) -> LabAnswer:
        """Return the answer for an edit of a model whose next token is read.

        The edit adds, at the last token, the probe's directions for the changes of the board, or for removing the piece
        on the most probable square, or the residual of a later board.
        """
        from chessreg.experiments.edit.cases import (
            Case,
            apply_board_changes,
            build_single_prefix,
            explain_case_skip,
            remove_favourite,
        )
        from chessreg.experiments.edit.site_editor import CaseEdits

        spec = self._build_spec(question, reference)
        assert isinstance(spec, NextTokenEditSpec)
        try:
            check_edit(spec, self.inputs)
        except ProbeMismatchError as error:
            return self._answer(scene, [], why_not=f"{error.message}: {error.hint}")  # the clean model still answers
        case_edits = CaseEdits(spec, self.inputs, "cpu", scene.model)
        condition = case_edits.find_condition(question.condition)
        prefix = build_single_prefix(spec, scene.model.encoding)
        prefix = replace(prefix, state=replace(prefix.state, unit=question.unit))
        if condition.source == PATCH:
            assert prefix.later
            case = Case(prefix, prefix.later, ())
        elif spec.board:
            case = apply_board_changes(prefix, spec.board)
        else:
            first_logprobs = TokenTree(self._open_session(scene)).logprobs(0)
            square = scene.model.encoding.find_origin(int(first_logprobs.argmax()))
            if (reason := explain_case_skip(spec, prefix, square)) or square is None:
                return self._answer(
                    scene, [], why_not=f"no piece can be removed from the most probable square: {reason}"
                )
            case = remove_favourite(prefix, square)
        scene = replace(scene, modified_board=case.target, square=case.square)
        try:
            edits = case_edits.build_edits(case, condition)
        except BadInputError as error:
            return self._answer(scene, [], why_not=error.message)
        return self._answer(scene, edits, describe_edit(question, scene))

    def _build_spec(self, question: LabPosition, reference: str) -> EditSettings:
        """Return the edit's spec with references to its inputs: `reference` to the checkpoint, and one to each probe
        that `question` names."""
        spec = question.spec()
        values: dict[str, Any] = {"checkpoint": reference}
        for name, field in type(spec).model_fields.items():
            ref, value = get_field_reference(field), getattr(spec, name)
            if ref is None or name in values or not value:
                continue
            if isinstance(value, tuple):
                values[name] = tuple(self.inputs.reference(ref.noun, each) for each in value)
            else:
                values[name] = self.inputs.reference(ref.noun, value)
        return spec.model_copy(update=values)

    def _answer_steering(self, scene: Scene, question: LabPosition, reference: str) -> LabAnswer:
        """Return the answer for adding the directions of a vector run."""
        checkpoint, _ = self.inputs.checkpoint(reference)
        if question.scale == 0:
            return self._answer(scene, [], why_not="scale 0 changes nothing")
        vector = self.inputs.reference("run:vector", question.vector or "")
        settings = InterventionSettings(
            vector=vector, layers=question.layers, scale=question.scale, token_mask=question.token_mask
        )
        intervention = interventions.load_intervention(settings, checkpoint, self.inputs)
        assert intervention
        suffix = "" if question.token_mask == "all" else ", last token"
        words = f"{intervention.row['source']} x {question.scale:g}{suffix}"
        return self._answer(scene, intervention.build_edits(), words)

    def _answer(self, scene: Scene, edits: Sequence[ResidualEdit], edit: str = "", why_not: str = "") -> LabAnswer:
        """Return the answer for a scene without edits and, if there are any, with `edits`.

        `edit` describes them, and `why_not` is the reason why there are none. The side without edits is reused while
        the question differs only in its edits.
        """
        session = self._open_session(scene)
        aim = scene.modified_board and scene.modified_board.fen()
        key = (scene.prompt, id(scene.model), id(scene.probes), aim, scene.next_token)
        if self._side is None or self._side[0] != key:
            self._side = (key, scene.side(session))
        after = scene.side(session.branch(list(edits)), edits) if edits else None
        moved_piece = None if scene.square is None else scene.board.piece_at(scene.square)
        return LabAnswer(
            scene.board.fen(), (), tuple(probe.layer for probe in scene.probes), self._side[1], after, edit,
            tuple(edit.layer for edit in edits), tuple(get_edit_scale(edit, 0) for edit in edits),
            scene.square, moved_piece.symbol() if moved_piece else "",
            scene.modified_board.fen() if scene.modified_board else "", why_not,
            next_token=scene.next_token,
        )  # fmt: skip

    # -- kept from question to question ---------------------------------------------------------------------------

    def model(self, folder: Path) -> LanguageModel:
        """Return the checkpoint in this folder. The last one stays in memory."""
        if self._model is None or self._model[0] != folder:
            self._model = (folder, LanguageModel.load(folder, device="cpu"))
        return self._model[1]

    def probes(self, reference: str) -> tuple[FittedProbe, ...]:
        """Return the piece probes of every layer of a run. Raises BadInputError for probes of another label."""
        if self._probes is None or self._probes[0] != reference:
            probes = tuple(
                load_probe(self.inputs, reference, layer) for layer in list_probed_layers(reference, self.inputs)
            )
            if probes[0].label != "piece":
                raise BadInputError(f"the probe reads {probes[0].label}, not pieces", "chessreg probe list")
            check_editable("the probe", probes[0].hook_point)
            self._probes = (reference, probes)
        return self._probes[1]

    def _open_session(self, scene: Scene) -> DecodingSession:
        """Return a session that holds the prompt. Tokens shared with the last prompt are not computed again."""
        if self._clean is None or self._clean[0] is not scene.model:
            self._clean = (scene.model, open_decoding_session(scene.model, 1))
        self._clean[1].sync([scene.prompt])
        return self._clean[1]


def rank_moves(
    answers: Mapping[Prefix, chess.Move], probability: Mapping[Prefix, float], board: chess.Board
) -> tuple[RankedMove, ...]:
    """Return the moves by falling probability. Moves that agree to six digits are sorted by name, because the last bits
    depend on the CPU."""
    moves = [RankedMove(move.uci(), board.san(move), probability[ids]) for ids, move in answers.items()]
    return tuple(sorted(moves, key=lambda move: (-float(f"{move.probability:.6g}"), move.uci)))


def describe_edit(question: LabPosition, scene: Scene) -> str:
    """Return a short description of the edit."""
    if question.condition == PATCH:
        return f"residual of the board after {question.later}"
    if question.condition != EDIT:
        return question.condition
    moved_piece = None if scene.square is None else scene.board.piece_at(scene.square)
    if moved_piece is None or scene.square is None:
        return question.board
    return f"{moved_piece.symbol()} taken off {chess.square_name(scene.square)}"


def build_state(question: LabPosition, encoding: Encoding) -> State:
    """Return the position of a question. Raises BadInputError for a FEN if the model reads games."""
    if not question.fen:
        return replace(build_state_after(question.moves.split(), encoding), unit=question.unit)
    if encoding.content != "position":
        raise BadInputError(
            f"{encoding.name} writes games, and a FEN does not contain the game",
            "give the moves that lead to the position: --moves",
        )
    board = chess.Board(question.fen)
    return State(0, NO_GAME, board.ply(), encoding.prompt(board), board)


def sum_origin_probabilities(probability: np.ndarray, encoding: Encoding) -> tuple[float, ...]:
    """Return the probability that the next move begins on each square, 64 numbers, or nothing if no token names a
    square.

    `probability` float64 [outputs] is that of the next token.
    """
    origins = np.array([-1 if (o := encoding.find_origin(i)) is None else o for i in range(len(probability))])
    if (origins < 0).all():
        return ()
    sums = np.bincount(origins[origins >= 0], probability[origins >= 0], 64)
    return tuple(sums.clip(0.0, 1.0).tolist())


def softmax_float32(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, float32."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True, initial=-np.inf))
    shares: np.ndarray = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    return shares
