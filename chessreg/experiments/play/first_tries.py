"""What a model would write at the turns of given games, each turn from the text as it was really played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import chess

if TYPE_CHECKING:
    from chessreg.encodings.tokenizers import Tokenizer
    from chessreg.models.decoding import DecodingSession
    from chessreg.models.edits import Edit
    from chessreg.models.language_model import LanguageModel

STRIDE_PLIES = 2  # White's turns, or Black's


@dataclass(frozen=True)
class Written:
    """The greedy text at one turn. `game` is the place of the game among those given, `board` the position (the walk's
    own: copy what is to be kept), `move` the legal move that the text names, if it names one, `mass` the exact
    probability of a legal move, 0 to 1, where that was asked for."""

    game: int
    ply: int
    board: chess.Board
    text: str
    move: chess.Move | None
    mass: float | None


def first_tries(
    model: LanguageModel,
    pgn: Tokenizer,
    texts: Sequence[str],
    *,
    black: bool = False,
    every: int = 1,
    mass: bool = False,
    edits: Sequence[Edit] = (),
) -> Iterator[list[Written]]:
    """Go through these games together, ply by ply; at every `every`th turn of one side write a move, then go on as the
    game did. Yields one list a ply, empty where nothing was written. A game whose prompt leaves no room for a move in
    the model's context is not asked any more."""
    from chessreg.models.sampling import sample_moves

    moves = [[word.split(".")[-1] for word in text[1:].split()] for text in texts]
    boards = [chess.Board() for _ in texts]
    session = model.session(len(texts), edits)
    for ply in range(max(map(len, moves))):
        active = [r for r, played in enumerate(moves) if ply < len(played)]
        written: list[Written] = []
        if ply % STRIDE_PLIES == black and ply // STRIDE_PLIES % every == 0:
            prompts = {r: list(map(int, pgn.encode(pgn.prompt(moves[r][:ply])))) for r in active}
            room = [r for r in active if len(prompts[r]) + pgn.max_move_tokens < model.block_size]
            session.sync([prompts[r] if r in room else session.tokens[r] for r in range(len(texts))])
            if room:
                sampled = sample_moves(session, pgn, [(0,)] * len(room), temperature=0.0, rows=room)
                masses = legal_masses(session, pgn, boards, room) if mass else [None] * len(room)
                written = [
                    Written(r, ply, boards[r], one.text, pgn.parse(one.text, boards[r]), share)
                    for r, one, share in zip(room, sampled, masses, strict=True)
                ]
        yield written
        for r in active:
            boards[r].push_san(moves[r][ply])


def legal_masses(
    session: DecodingSession, pgn: Tokenizer, boards: list[chess.Board], rows: list[int]
) -> list[float | None]:
    """The exact probability that each row's next text is a legal move, 0 to 1."""
    from chessreg.models.legal import legal_move_mass, move_logprobs

    scored = move_logprobs(session, [boards[r] for r in rows], pgn, rows)
    return [min(legal_move_mass(row), 1.0) for row in scored]
