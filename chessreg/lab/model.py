"""The lab at work: a model in memory, its probes, and answers about one position after the other.

What the clean model says is kept while only the edit changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.edit.editor import canonical_probabilities, mass_of, scale_of
from chessreg.experiments.edit.heat import placed
from chessreg.experiments.edit.kind import check as check_edit
from chessreg.experiments.edit.model import EditedModel, logits_of
from chessreg.experiments.edit.spec import probed_layers
from chessreg.experiments.edit.states import Removal, after_moves, removal
from chessreg.experiments.settings import interventions
from chessreg.experiments.settings.interventions import InterventionSettings
from chessreg.games.moves import pack, sans
from chessreg.lab.answer import Answer, Ranked, Side
from chessreg.lab.question import Position, StoredState
from chessreg.models.hook_points import check_editable
from chessreg.models.language_model import LanguageModel
from chessreg.models.sampling import SampledText, sample_trees
from chessreg.models.tree import Prefix, TokenTree
from chessreg.runs.fitted import FittedProbe, load_probe

if TYPE_CHECKING:
    from pathlib import Path

    from chessreg.models.decoding import DecodingSession
    from chessreg.models.edits import ResidualEdit
    from chessreg.runs.inputs import Inputs


@dataclass(frozen=True)
class Scene:
    """A position before a model, and the probes that read it."""

    model: LanguageModel
    board: chess.Board
    prompt: tuple[int, ...]
    probes: tuple[FittedProbe, ...]
    removed: Removal | None = None

    @property
    def modified(self) -> chess.Board | None:
        return self.removed.modified if self.removed else None

    @cached_property
    def answers(self) -> list[dict[Prefix, chess.Move]]:
        """The canonical answers of the original and, where there is one, of the modified board."""
        boards = [self.board, *([self.modified] if self.modified else [])]
        return [{ids: move for move, ids in self.model.encoding.answers(board).items()} for board in boards]

    def greedy(self, trees: TokenTree) -> SampledText:
        [[written]] = sample_trees(trees, self.model.encoding, [self.board], [[(0,)]], temperature=[0.0])
        return written

    def side(self, session: DecodingSession, edits: Sequence[ResidualEdit] = ()) -> Side:
        """What the model says here; `session` holds the prompt under these edits."""
        logits = np.zeros((0, 64, 13), np.float32)
        if self.probes:
            residuals = session.residuals([probe.layer for probe in self.probes])[:, 0]
            logits = logits_of(residuals, self.model, self.prompt, self.probes, edits)
        trees = TokenTree(session)
        [probability] = canonical_probabilities(trees, [tuple(frozenset(answers) for answers in self.answers)])
        masses = [mass_of(probability, frozenset(answers)) for answers in self.answers]
        written = self.greedy(trees)
        legal = self.model.encoding.parse(written.tokens, self.board) is not None
        ranks, modified = ranked(self.answers[0], probability, self.board), self.modified
        return Side(
            written.text,
            legal,
            masses[0],
            masses[1] if modified else None,
            ranks,
            ranked(self.answers[1], probability, modified) if modified else (),
            softmax(logits),
        )


class Lab:
    """Answers questions about positions against one registry and store, on the CPU."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._model: tuple[Path, LanguageModel] | None = None
        self._probes: tuple[str, tuple[FittedProbe, ...]] | None = None
        self._clean: tuple[LanguageModel, DecodingSession] | None = None
        self._side: tuple[object, Side] | None = None

    def ask(self, question: Position | StoredState) -> Answer:
        """The clean and the edited model in a position.

        Raises NotFoundError or BadInputError where the question names what there is not, or what does not go together.
        """
        began = time.monotonic()
        answer = self._stored(question) if isinstance(question, StoredState) else self._given(question)
        return replace(answer, seconds=time.monotonic() - began)

    def _stored(self, question: StoredState) -> Answer:
        found = placed(self.inputs, UUID(hex=question.run), question.unit, question.condition)
        probes = self.probes(found.spec.probe)
        board = found.state.board
        scene = Scene(found.edited.model, board, found.state.prompt, probes, found.removed)
        moves = tuple(sans(pack(board.move_stack)))
        return replace(self._answer(scene, found.edits, found.condition.name), sans=moves)

    def _given(self, question: Position) -> Answer:
        recipe = self.inputs.reference("checkpoint", question.checkpoint)
        _, folder = self.inputs.checkpoint(recipe)
        model = self.model(folder)
        state = after_moves(question.moves, model.encoding)
        if len(state.prompt) + model.encoding.max_move_tokens - 1 > model.block_size:
            raise BadInputError(f"{state.ply} plies are more than this model's context holds", "take moves back")
        if state.board.is_game_over():
            raise BadInputError("the game is over there: no move to look at", "take a move back")
        probes = () if question.probe is None else self.probes(self.inputs.reference("run:probe", question.probe))
        scene = Scene(model, state.board, state.prompt, probes)
        if not question.moves and question.vector is None:
            answer = self._answer(scene, [], why_not="make a move first: an edit is named by its moves")
        elif question.vector is not None:
            answer = self._steered(scene, question, recipe)
        elif question.probe is not None:
            answer = self._without_piece(scene, question, recipe)
        else:
            answer = self._answer(scene, [], why_not="choose a probe or a vector to edit with")
        return replace(answer, sans=tuple(question.moves.split()))

    def _without_piece(self, scene: Scene, question: Position, recipe: str) -> Answer:
        """The probe's direction for the piece that the clean model moves, subtracted."""
        state = after_moves(question.moves, scene.model.encoding)
        written = scene.greedy(TokenTree(self._session(scene)))
        move = scene.model.encoding.parse(written.tokens, state.board)
        if move is None:
            why_not = f"the model writes {written.text.strip()!r}, which is no legal move: no piece to take off"
            return self._answer(scene, [], why_not=why_not)
        probe = self.inputs.reference("run:probe", question.probe or "")
        spec = question.spec().model_copy(update={"checkpoint": recipe, "probe": probe})
        check_edit(spec, self.inputs)
        edited, removed = EditedModel(spec, self.inputs, "cpu", scene.model), removal(state, move)
        edits = edited.edits(edited.settings[0], [list(scene.prompt)], [removed])
        words = f"{removed.piece.symbol()} taken off {chess.square_name(removed.square)}"
        return self._answer(replace(scene, removed=removed), edits, words)

    def _steered(self, scene: Scene, question: Position, recipe: str) -> Answer:
        """A vector's direction, added."""
        checkpoint, _ = self.inputs.checkpoint(recipe)
        if question.scale == 0:
            return self._answer(scene, [], why_not="scale 0 changes nothing")
        vector = self.inputs.reference("run:vector", question.vector or "")
        settings = InterventionSettings(
            vector=vector, layers=question.layers, scale=question.scale, token_mask=question.positions
        )
        found = interventions.load(settings, checkpoint, self.inputs)
        assert found
        where = "" if question.positions == "all" else ", last token"
        words = f"{found.row['source']} x {question.scale:g}{where}"
        return self._answer(scene, found.edits(), words)

    def _answer(self, scene: Scene, edits: Sequence[ResidualEdit], edit: str = "", why_not: str = "") -> Answer:
        session = self._session(scene)
        key = (scene.prompt, id(scene.model), id(scene.probes), scene.modified and scene.modified.fen())
        if self._side is None or self._side[0] != key:
            self._side = (key, scene.side(session))
        after = scene.side(session.branch(list(edits)), edits) if edits else None
        removed = scene.removed
        return Answer(
            scene.board.fen(), (), tuple(probe.layer for probe in scene.probes), self._side[1], after, edit,
            tuple(edit.layer for edit in edits), tuple(scale_of(edit, 0) for edit in edits),
            removed.square if removed else None, removed.piece.symbol() if removed else "",
            removed.modified.fen() if removed else "", why_not,
        )  # fmt: skip

    # -- what is kept from question to question -------------------------------------------------------------------

    def model(self, folder: Path) -> LanguageModel:
        """The checkpoint in this folder; the last one stays in memory."""
        if self._model is None or self._model[0] != folder:
            self._model = (folder, LanguageModel.load(folder, device="cpu"))
        return self._model[1]

    def probes(self, recipe: str) -> tuple[FittedProbe, ...]:
        """The piece probes of every layer of a run. Raises BadInputError for probes of something else."""
        if self._probes is None or self._probes[0] != recipe:
            found = tuple(load_probe(self.inputs, recipe, layer) for layer in probed_layers(recipe, self.inputs))
            if found[0].label != "piece":
                raise BadInputError(f"that probe reads {found[0].label}, not pieces", "chessreg probe list")
            check_editable("that probe", found[0].hook_point)
            self._probes = (recipe, found)
        return self._probes[1]

    def _session(self, scene: Scene) -> DecodingSession:
        """A session that holds the prompt; what it shares with the last one is not computed again."""
        if self._clean is None or self._clean[0] is not scene.model:
            self._clean = (scene.model, scene.model.session(1))
        self._clean[1].sync([scene.prompt])
        return self._clean[1]


def ranked(
    answers: Mapping[Prefix, chess.Move], probability: Mapping[Prefix, float], board: chess.Board
) -> tuple[Ranked, ...]:
    """The moves, the most probable first; those that agree to six digits by name, as the last bits are the CPU's."""
    found = [Ranked(move.uci(), board.san(move), probability[ids]) for ids, move in answers.items()]
    return tuple(sorted(found, key=lambda move: (-float(f"{move.probability:.6g}"), move.uci)))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, float32."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True, initial=-np.inf))
    shares: np.ndarray = (powers / powers.sum(-1, keepdims=True)).astype(np.float32)
    return shares
