"""The model's probabilities as comments of the games that it played."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import chess

from chessreg.errors import BadInputError
from chessreg.lab.player import LabPlayer, PlayerEdit
from chessreg.registry.identity import shorten_id

if TYPE_CHECKING:
    from chessreg.entities.game import StoredGame
    from chessreg.games.boards.pgn import GameRecord
    from chessreg.models.decoding.legal import MoveDistribution
    from chessreg.runs.inputs import Inputs


def annotate_games(
    inputs: Inputs, games: Iterable[StoredGame], device: str = "auto", threads: int = 0
) -> Iterator[GameRecord]:
    """Yield the records of games with the model's probabilities as a comment after each of its moves.

    The probabilities are computed again, with the checkpoint and the intervention of the game's match, at one forward
    pass per move. Moves of the opening and plies that Stockfish played for the model have no comment. The opponent's
    moves have none either.

    Raises BadInputError for a game without a checkpoint, such as an imported one. Raises NotFoundError if the weights
    or the vector are not in the store.
    """
    players: dict[tuple[UUID, UUID | None], LabPlayer] = {}
    for stored_game in games:
        checkpoint, intervention = stored_game.match.checkpoint_id, stored_game.match.intervention_id
        if checkpoint is None:
            raise BadInputError(
                f"game {stored_game.game.unit} of run {shorten_id(stored_game.game.run_id)} has no checkpoint "
                "that could compute probabilities",
                "leave out --probabilities",
            )
        key = checkpoint, intervention
        if key not in players:
            players[key] = LabPlayer(inputs, checkpoint.hex, device, threads)
            players[key].edit(PlayerEdit(intervention.hex if intervention else ""))
        yield replace(stored_game.record(), comments=describe_turns(players[key], stored_game))


def describe_turns(player: LabPlayer, stored_game: StoredGame) -> dict[int, str]:
    """Return a comment for each ply (0-based) that the model played."""
    board, comments = chess.Board(), dict[int, str]()
    color, assisted = (
        chess.WHITE if stored_game.match.color == "white" else chess.BLACK,
        set(stored_game.assisted_plies),
    )
    for ply, text in enumerate(stored_game.moves):
        move = chess.Move.from_uci(text)
        if board.turn == color and ply >= stored_game.game.opening_plies and ply not in assisted:
            comments[ply] = describe_probabilities(player.score(board), board, move)
        board.push(move)
    return comments


def describe_probabilities(distribution: MoveDistribution, board: chess.Board, move: chess.Move) -> str:
    """Return the comment of a move: `p=0.2710 legal=0.9954 best=Nf3 0.4312`.

    `p` and the number after `best` are probabilities among the legal moves, and `legal` is the probability of all legal
    moves together. `best` is left out if the move is the most probable one.
    """
    shares = distribution.shares()
    best_move = next(iter(shares))
    text = f"p={shares[move.uci()]:.4f} legal={min(distribution.legal_mass, 1.0):.4f}"
    return (
        text
        if best_move == move.uci()
        else f"{text} best={board.san(chess.Move.from_uci(best_move))} {shares[best_move]:.4f}"
    )
