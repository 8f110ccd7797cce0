"""A checkpoint that plays move by move like a chess program: it gets a position and returns a move.

Every encoding and policy is supported, with an intervention that may change between two moves. If the model cannot
produce a move, a named fallback chooses it. The returned move is always legal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import chess

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.boards.typed import find_shortest_game
from chessreg.models.decoding.policies import ModelTurn, MoveChoice, choose_moves, compute_distributions, make_policy
from chessreg.noise import Stream, uniform
from chessreg.registry import names, tables
from chessreg.steering import interventions

if TYPE_CHECKING:
    from chessreg.models.decoding.legal import MoveDistribution
    from chessreg.models.decoding.session import DecodingSession
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.steering.interventions import InterventionSettings

MAX_SHOWN_TRIES = 3  # of illegal tries, in a message


@dataclass(frozen=True)
class PlayerEdit:
    """The edit of a player.

    `intervention` is an intervention's id, or a vector run's name or id; empty: no edit. `layers` empty: all of its
    layers. `scale` None: the recorded scale; 0: no edit.
    """

    intervention: str = ""
    layers: tuple[int, ...] = ()
    scale: float | None = None


@dataclass(frozen=True)
class PlayerMove:
    """The result for one position.

    `shares` are the model's probabilities of the legal moves, renormalized and sorted by falling probability; with
    `searchmoves` only of these. `mass` is the probability that the model gave to legal moves. Both are empty if the
    model could not be run. `notes` describe fallbacks. `move` is `None` if no move is legal.
    """

    move: chess.Move | None
    shares: dict[str, float]
    mass: float | None
    notes: tuple[str, ...] = ()


class LabPlayer:
    """One checkpoint of a registry as a player. It writes nothing to the registry; `load` or the first move imports
    torch.

    Raises NotFoundError if the checkpoint does not exist, and BadInputError if it has no weights.
    """

    def __init__(self, inputs: Inputs, checkpoint: str, device: str = "auto", threads: int = 0) -> None:
        self.inputs, self.device, self.threads = inputs, device, threads
        self.reference = inputs.reference("checkpoint", checkpoint)
        self.row = inputs.read_checkpoint_row(self.reference)
        self.edit_settings: InterventionSettings | None = None
        self._model: LanguageModel | None = None
        self._session: DecodingSession | None = None
        self._games: dict[str, list[chess.Move] | None] = {}  # shortest games by the FEN that they lead to

    def load(self) -> LanguageModel:
        """Return the model, loading it first. Raises the errors of reading a checkpoint."""
        if self._model is None:
            from chessreg.models.devices import prepare_device
            from chessreg.models.language_model import LanguageModel

            _, folder = self.inputs.checkpoint(self.reference)
            self._model = LanguageModel.load(folder, device=prepare_device(self.device, self.threads))
        return self._model

    def set_threads(self, threads: int) -> None:
        """Set the number of CPU threads from the next move on."""
        self.threads = threads
        if self._model is not None:
            from chessreg.models.devices import prepare_device

            prepare_device("cpu", threads)

    # -- edits ----------------------------------------------------------------------------------------------------

    def edit(self, edit: PlayerEdit) -> None:
        """Add this edit from the next move on.

        Raises NotFoundError or BadInputError, and keeps the previous edit, if the intervention or layer does not exist
        or belongs to another checkpoint.
        """
        settings = self._parse_settings(edit)
        if settings is not None:
            interventions.select_vector_rows(settings, self.row, self.inputs)
        if settings != self.edit_settings:
            self.edit_settings, self._session = settings, None

    def _parse_settings(self, edit: PlayerEdit) -> InterventionSettings | None:
        if not edit.intervention or edit.scale == 0:
            return None
        settings = self._find_recorded_settings(edit.intervention)
        if settings is None:
            try:
                vector = self.inputs.reference("run:vector", edit.intervention)
            except NotFoundError:
                raise NotFoundError(
                    f"no intervention or vector run is named {edit.intervention!r}", "chessreg vector list"
                ) from None
            settings = interventions.InterventionSettings(vector=vector)
        scale = settings.scale if edit.scale is None else edit.scale
        changed_settings = {"layers": edit.layers or settings.layers, "scale": scale}
        return interventions.InterventionSettings(**{**settings.model_dump(), **changed_settings})

    def _find_recorded_settings(self, text: str) -> InterventionSettings | None:
        """Return the settings of the recorded intervention that `text` names, or None if it names none."""
        with self.inputs.database.read() as session:
            try:
                intervention_id = names.resolve_id(session, "intervention", text)
            except NotFoundError:
                return None
            return interventions.read_intervention_settings(session.get_one(tables.Intervention, intervention_id))

    def _build_edits(self) -> list[ResidualEdit]:
        if self.edit_settings is None:
            return []
        intervention = interventions.load_intervention(self.edit_settings, self.row, self.inputs)
        assert intervention is not None
        return intervention.build_edits(str(self.load().device))

    # -- moves ----------------------------------------------------------------------------------------------------

    def open_session(self, rows: int) -> DecodingSession:
        """Return an empty session of the model, with its edit, for `rows` positions at once."""
        from chessreg.models.decoding.session import open_decoding_session

        return open_decoding_session(self.load(), rows, self._build_edits())

    def score_boards(self, session: DecodingSession, boards: Mapping[int, chess.Board]) -> dict[int, MoveDistribution]:
        """Return row → the model's probabilities of the legal moves on the board in that row of `session`.

        Every board has a legal move, and its stack holds the game as far as it is known. Raises the errors of `load`,
        and ChessregError if the model cannot read a position.
        """
        if not boards:
            return {}
        model, turns = self.load(), []
        rows: list[Any] = [tokens or model.encoding.prompt(chess.Board())[:1] for tokens in session.tokens]
        for row, board in boards.items():
            tokens, fits, _ = self._read_prompt(model, board)
            rows[row] = tokens if fits else tokens[-1:]
            turns.append(ModelTurn(row, board, (Stream.UCI,), None if fits else tuple(tokens)))
        session.sync(rows)
        return dict(zip(boards, compute_distributions(session, model.encoding, turns), strict=True))

    def _compute_distribution(self, turn: ModelTurn) -> MoveDistribution:
        assert self._session is not None
        [distribution] = compute_distributions(self._session, self.load().encoding, [turn])
        return distribution

    def find(
        self,
        board: chess.Board,
        policy: str,
        temperatures: tuple[float, ...],
        key: tuple[int | str, ...],
        search_moves: Collection[chess.Move] = (),
    ) -> PlayerMove:
        """Return a move on this board.

        The board's stack holds the game as far as it is known. `key` names the draws. `search_moves` restricts the move
        to these legal moves, with the policy `legal`; empty: all moves.

        Raises the errors of `load`. For an error in the position itself it returns the move of a fallback.
        """
        model = self.load()
        if not any(board.legal_moves):
            return PlayerMove(None, {}, None)
        try:
            turn, notes = self._turn(model, board, key)
            return self._choose_move(turn, self._compute_distribution(turn), policy, temperatures, search_moves, notes)
        except ChessregError as error:
            self._session = None  # it may hold half a prompt
            moves = sorted(search_moves or board.legal_moves, key=chess.Move.uci)
            drawn_move = moves[int(uniform(*key, Stream.UNIFORM) * len(moves))]
            reason = (
                f"the model could not be run: {error.message}",
                "fallback uniform: bestmove is any legal move, drawn by Seed",
            )
            return PlayerMove(drawn_move, {}, None, reason)

    def _turn(
        self, model: LanguageModel, board: chess.Board, key: tuple[int | str, ...]
    ) -> tuple[ModelTurn, tuple[str, ...]]:
        """Return the model's turn, and notes about how the game before the position was found.

        The prompt of the turn is in the session, or in the turn if it is too long for the context. Raises BadInputError
        for a position that does not fit the context.
        """
        tokens, fits, notes = self._read_prompt(model, board)
        if self._session is None:
            self._session = self.open_session(1)
        read_tokens = tokens if fits else tokens[-1:]  # a turn with a separate prompt does not read the session's
        self._session.sync([read_tokens])
        return ModelTurn(0, board, key, None if fits else tuple(tokens)), notes

    def _read_prompt(self, model: LanguageModel, board: chess.Board) -> tuple[Sequence[int], bool, tuple[str, ...]]:
        """Return a position's prompt, whether it fits the context, and notes about how it was found.

        Raises BadInputError for a position that does not fit the context.
        """
        encoding, game, notes = model.encoding, board, tuple[str, ...]()
        if encoding.content == "history" and board.root() != chess.Board():
            game, notes = self._find_game(board)
        tokens = encoding.prompt(game)
        room = model.block_size - (encoding.max_move_tokens - 1)
        if len(tokens) <= room:
            return tokens, True, notes
        if encoding.content == "position":  # half a position cannot be read
            raise BadInputError(
                f"a prompt of {len(tokens)} tokens does not fit the model's {model.block_size} positions"
            )
        note = (
            f"the game is longer than the model's context ({len(tokens)} tokens, {room} fit): fallback crop: "
            "the model reads the newest tokens"
        )
        return tokens, False, (*notes, note)

    def _find_game(self, board: chess.Board) -> tuple[chess.Board, tuple[str, ...]]:
        """Return the board with a shortest game before its moves, and a note. Return the board itself if no game is
        found; a model of games then refuses it."""
        root = board.root()
        if root.fen() not in self._games:
            try:
                self._games[root.fen()] = find_shortest_game(root)
            except BadInputError:
                self._games[root.fen()] = None
        moves = self._games[root.fen()]
        if moves is None:
            return board, ()
        full_board = chess.Board()
        for move in (*moves, *board.move_stack):
            full_board.push(move)
        note = (
            "the moves before this FEN are unknown: fallback shortest: the model reads the shortest game "
            "that leads to it"
        )
        return full_board, (note,)

    def _choose_move(
        self,
        turn: ModelTurn,
        distribution: MoveDistribution,
        policy: str,
        temperatures: tuple[float, ...],
        search_moves: Collection[chess.Move],
        notes: tuple[str, ...],
    ) -> PlayerMove:
        """Return the move of a turn: drawn by `policy`, or from `search_moves` if these are given. If the policy finds
        no legal move, draw one from `distribution` and add a note. `temperatures` has one number per try."""
        player_move = PlayerMove(None, distribution.shares(), min(distribution.legal_mass, 1.0), notes)
        greedy = make_policy("legal", temperatures[:1]).temperatures[0]
        if search_moves:
            allowed_ucis = {move.uci() for move in search_moves}
            legal_policy = replace(
                distribution,
                logprobs={move: value for move, value in distribution.logprobs.items() if move in allowed_ucis},
            )
            text = legal_policy.choose(greedy, *turn.key, 0)
            shares = {move: share for move, share in player_move.shares.items() if move in allowed_ucis}
            return replace(player_move, move=chess.Move.from_uci(text), shares=shares)
        assert self._session is not None
        [choice] = choose_moves(make_policy(policy, temperatures), self._session, self._session.model.encoding, [turn])
        if choice.move is not None:
            return replace(player_move, move=choice.move)
        text = distribution.choose(greedy, *turn.key, Stream.UCI_LEGAL_FALLBACK)
        reason = f"{policy} {describe_failure(choice)}: fallback legal: bestmove is drawn from the legal moves"
        return replace(player_move, move=chess.Move.from_uci(text), notes=(*notes, reason))


def describe_failure(choice: MoveChoice) -> str:
    """Return a description of the output of a policy that did not produce a legal move."""
    tries = ", ".join(map(ascii, choice.illegal[:MAX_SHOWN_TRIES])) + (
        ", …" if len(choice.illegal) > MAX_SHOWN_TRIES else ""
    )
    if choice.is_resignation:
        return "wrote a game result" + (f" after {tries}" if tries else "")
    return f"wrote no legal move ({tries})"
