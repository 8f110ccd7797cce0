"""The model's probabilities as comments of the games that it played."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
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


BATCH_GAMES = 32  # games that one forward pass reads
PlayerKey = tuple[UUID, UUID | None]  # checkpoint and intervention


def annotate_games(
    inputs: Inputs,
    games: Iterable[StoredGame],
    device: str = "auto",
    threads: int = 0,
    on_progress: Callable[[float], None] = lambda games: None,
) -> Iterator[GameRecord]:
    """Yield the records of games with the model's probabilities as a comment after each of its moves.

    The probabilities are computed again, with the checkpoint and the intervention of the game's match. One forward pass
    reads a move of each of `BATCH_GAMES` games. Moves of the opening and plies that Stockfish played for the model have
    no comment. The opponent's moves have none either. `on_progress` is called with the number of games that are done,
    including fractions.

    Raises BadInputError for a game without a checkpoint, such as an imported one. Raises NotFoundError if the weights
    or the vector are not in the store.
    """
    players: dict[PlayerKey, LabPlayer] = {}
    remaining_games, done_games = iter(games), 0.0
    while batch := list(itertools.islice(remaining_games, BATCH_GAMES)):
        by_player: dict[PlayerKey, list[int]] = {}
        for place, stored_game in enumerate(batch):
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
            by_player.setdefault(key, []).append(place)
        comments: dict[int, dict[int, str]] = {}
        for key, places in by_player.items():
            texts = describe_turns(players[key], [batch[place] for place in places], on_progress, done_games)
            comments.update(zip(places, texts, strict=True))
            done_games += len(places)
        for place, stored_game in enumerate(batch):
            yield replace(stored_game.record(), comments=comments[place])


def describe_turns(
    player: LabPlayer, games: Sequence[StoredGame], on_progress: Callable[[float], None], done_games: float
) -> list[dict[int, str]]:
    """Return, for each game, a comment for each ply (0-based) that the model played.

    `on_progress` is called after each ply with the number of games that are done, to which `done_games` is added.
    """
    session = player.open_session(len(games))
    boards, comments = [chess.Board() for _ in games], [dict[int, str]() for _ in games]
    moves = [[chess.Move.from_uci(text) for text in game.moves] for game in games]
    model_plies = [find_model_plies(game) for game in games]
    longest = max(map(len, moves))
    for ply in range(longest):
        asked_boards = {row: board for row, board in enumerate(boards) if ply in model_plies[row]}
        for row, distribution in player.score_boards(session, asked_boards).items():
            comments[row][ply] = describe_probabilities(distribution, boards[row], moves[row][ply])
        for board, game_moves in zip(boards, moves, strict=True):
            if ply < len(game_moves):
                board.push(game_moves[ply])
        on_progress(done_games + len(games) * (ply + 1) / longest)
    return comments


def find_model_plies(stored_game: StoredGame) -> set[int]:
    """Return the plies (0-based) whose moves the model chose: without the opening and those that Stockfish played."""
    opening_plies, plies = stored_game.game.opening_plies, len(stored_game.moves)
    first = opening_plies + ((opening_plies % 2 == 0) != (stored_game.match.color == "white"))
    return set(range(first, plies, 2)) - set(stored_game.assisted_plies)


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
