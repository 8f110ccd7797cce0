"""UCI squares, compared with golden vectors of Davis's code and LCB's vocabulary."""

from __future__ import annotations

import time

import chess
import numpy as np
import pytest

from chessreg.encodings import get_encoding
from chessreg.encodings.uci_square import BLACK_DESTINATION, WHITE_DESTINATION, davis, lcb
from chessreg.errors import BadInputError
from chessreg.games.boards.moves import pack_moves
from chessreg.games.datasets.dataset import Games
from tests.encodings.conftest import GAMES, boards

FIGURE_3 = "e2e4 e7e6 d2d4 b7b6 a2a3 c8b7 b1c3 g8h6"


def played(ucis: str) -> chess.Board:
    board = chess.Board()
    for uci in ucis.split():
        board.push_uci(uci)
    return board


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("e2e4 d7d5 e4d5", [1, 16, 32, 55, 39, 32, 39]),
        (
            "e2e4 d7d5 e4d5 e7e6 d5e6 d8g5 e6e7 g5f6 e7f8q",
            [1, 16, 32, 55, 39, 32, 39, 56, 48, 39, 48, 63, 42, 48, 56, 42, 49, 56, 65, 68],
        ),
        ("", [1]),
        ("e2", [1, 16]),
    ],
)
def test_golden_encodings_of_davis(text: str, ids: list[int]) -> None:
    assert davis.encode(text).tolist() == ids
    assert davis.decode(ids) == text


def test_the_case_of_promotions_does_not_matter_and_unk_is_never_written() -> None:
    """pgn-extract writes e7e8Q, which Davis's tokenizer read as `<unk>` (1.1)."""
    assert davis.encode("e7e8Q").tolist() == davis.encode("e7e8q").tolist() == [1, 56, 64, 68]
    assert [davis.encode(f"a7a8{piece}").tolist()[-1] for piece in "qrbn"] == [68, 69, 70, 71]
    with pytest.raises(BadInputError, match="<unk>"):
        davis.encode("<unk>")


def test_the_vocabularies_are_those_of_davis_and_lcb() -> None:
    assert (davis.size, lcb.size) == (72, 77)
    assert davis.vocabulary[:5] == ("<pad>", "<s>", "</s>", "<unk>", "a1")
    assert davis.vocabulary[67:] == ("h8", "q", "r", "b", "n")
    assert "".join(lcb.vocabulary[3:9]) == "PNRBQK"
    assert lcb.vocabulary[9:12] == ("c2", "c4", "e7")
    assert lcb.vocabulary[70:] == ("g6", "b5", "a6", "q", "r", "b", "n")
    assert {"c2", "a6"} <= set(chess.SQUARE_NAMES) == set(lcb.vocabulary[9:73])
    assert (davis.masked_ids, lcb.masked_ids) == (frozenset(), frozenset(range(3, 9)))


def test_only_lcb_ends_a_game_with_a_token(dataset: Games) -> None:
    sans = next(filter(None, GAMES.values()))
    for one, last in ((davis, davis.prompt(sans.split())[-1]), (lcb, 2)):
        assert one.games(dataset, np.array([0])).item(0)[-1] == last
        assert one.games(dataset, np.array([0])).item(0)[0] == 1


def test_a_game_has_one_token_two_a_ply_and_one_a_promotion(dataset: Games) -> None:
    tokens = davis.games(dataset, np.arange(len(dataset)))
    for number, name in enumerate(name for name in GAMES if GAMES[name]):
        words = GAMES[name].split()
        assert len(tokens.item(number)) == 1 + 2 * len(words) + sum("=" in word for word in words)


@pytest.mark.parametrize(
    ("alignment", "plies"),
    [("pre-ply", [0, 0, 0, 1, 1, 2]), ("post-ply", [0, 0, 1, 1, 2, 2])],
)
def test_golden_phases_and_labels(alignment: str, plies: list[int]) -> None:
    """Davis's phases of the tokens bos, e2, e4, e7, e5, g1."""
    tokens = davis.encode_packed([pack_moves(played("e2e4 e7e5 g1f3").move_stack)])
    found = davis.sites("all", tokens, alignment)  # type: ignore[arg-type]
    assert found.phase.tolist()[:6] == [5, 0, 1, 2, 3, 0]
    assert found.ply.tolist()[:6] == plies
    assert davis.phases[:4] == ("white-origin", "white-destination", "black-origin", "black-destination")


def test_a_promotion_completes_the_move_and_does_not_advance_the_cycle() -> None:
    game = played("e2e4 d7d5 e4d5 e7e6 d5e6 d8g5 e6e7 g5f6 e7f8q e8f8")
    tokens = davis.encode_packed([pack_moves(game.move_stack)])
    ids = tokens.ids.tolist()
    place = ids.index(68)
    after, before = (davis.sites("all", tokens, alignment) for alignment in ("post-ply", "pre-ply"))
    assert after.phase.tolist()[place - 2 : place + 3] == [0, 1, 4, 2, 3]
    assert after.ply.tolist()[place - 2 : place + 3] == [8, 8, 9, 9, 10]
    assert before.ply.tolist()[place - 2 : place + 3] == [8, 8, 8, 9, 9]
    assert davis.sites("promotions", tokens).token.tolist() == [place]
    assert place - 1 not in davis.sites("turns", tokens).token.tolist()


@pytest.mark.parametrize("name", [name for name in GAMES if GAMES[name]])
def test_sites_by_name_are_what_the_tokens_are(name: str) -> None:
    """Each site by the token's own place in the move, from python-chess's moves."""
    expected: dict[str, list[int]] = {site: [] for site in davis.site_names}
    place = 1
    for number, move in enumerate(boards(name)[-1].move_stack):
        side = "black" if number % 2 else "white"
        expected[f"{side}-origins"].append(place)
        expected[f"{side}-destinations"].append(place + 1)
        if move.promotion:
            expected["promotions"].append(place + 2)
        place += 3 if move.promotion else 2
    tokens = davis.encode_packed([pack_moves(boards(name)[-1].move_stack)])
    for site in ("white-origins", "black-origins", "white-destinations", "black-destinations", "promotions"):
        assert davis.sites(site, tokens).token.tolist() == expected[site]
    for number, site in enumerate(("white-origins", "white-destinations", "black-origins", "black-destinations")):
        assert davis.sites(f"phase-{number}", tokens).token.tolist() == expected[site]
    both = sorted(expected["white-destinations"] + expected["black-destinations"])
    assert davis.sites("destinations", tokens).token.tolist() == both
    assert davis.sites("specials", tokens).token.tolist() == [0]


@pytest.mark.parametrize("move", [5, 10, 15, 20, 25, 30, 35])
def test_golden_grid_of_edits(move: int, dataset: Games) -> None:
    """Davis's grid: M, n = M - 1 plies, the last token 2n, its phase by the side to move."""
    plies = move - 1
    game = next(name for name in GAMES if len(GAMES[name].split()) >= plies + 6)
    prompt = davis.prompt(GAMES[game].split()[:plies])
    tokens = davis.encode_packed([pack_moves(boards(game)[plies].move_stack)])
    assert len(prompt) - 1 == 2 * plies
    phase = davis.sites("last", tokens).phase[0]
    assert phase == (BLACK_DESTINATION if plies % 2 == 0 else WHITE_DESTINATION)
    assert boards(game)[plies].turn == (phase == BLACK_DESTINATION)


def test_golden_legal_origins_of_figure_3() -> None:
    """Davis 2026, section 3.6: the tokens that begin a legal move on the original, target and future board."""
    original = played(FIGURE_3)
    target = original.copy(stack=False)
    target.remove_piece_at(chess.C1)
    future = chess.Board("rn2kb1r/pbpp1p1p/1p2p3/6qp/3PP1B1/P1N5/1PP2PPP/R2QK1NR w KQkq - 0 8")
    assert original.fen() == "rn1qkb1r/pbpp1ppp/1p2p2n/8/3PP3/P1N5/1PP2PPP/R1BQKBNR w KQkq - 3 5"
    for board, squares in (
        (original, "a1 a3 b2 c1 c3 d1 d4 e1 e4 f1 f2 g1 g2 h2"),
        (target, "a1 a3 b2 c3 d1 d4 e1 e4 f1 f2 g1 g2 h2"),
        (future, "a1 a3 b2 c3 d1 d4 e1 e4 f2 g1 g2 g4 h2"),
    ):
        starts = {ids[0] for ids in davis.answers(board).values()}
        assert starts == {4 + chess.parse_square(square) for square in squares.split()}


def test_a_move_ends_by_itself() -> None:
    """After the destination; after the piece where a pawn reaches the last rank; a rook there promotes to nothing."""
    board = chess.Board("7k/PR6/8/8/8/8/8/K7 w - - 0 1")
    a7, a8, b7, b8, a9 = (davis.vocabulary.index(square) for square in ("a7", "a8", "b7", "b8", "q"))
    assert [davis.is_complete(ids, board) for ids in ((), (a7,), (a7, a8), (a7, a8, a9))] == [False, False, False, True]
    assert davis.is_complete((b7, b8), board)
    assert davis.is_complete((1,), board)
    assert davis.is_complete((a7, a9), board)
    assert davis.parse((b7, b8, a9), board) == chess.Move.from_uci("b7b8")  # text after a move is ignored
    assert davis.parse((a7, a8), board) is None
    assert davis.parse((a7, a8, 1), board) is None
    assert davis.parse("a7a8Q", board) == chess.Move.from_uci("a7a8q")
    assert davis.parse("b7b8q", board) is None


def test_a_million_plies_take_a_moment() -> None:
    packed = [pack_moves(boards("three queens, long disambiguation")[-1].move_stack)] * 6400
    began = time.process_time()
    tokens = davis.encode_packed(packed)
    assert len(tokens.ids) > 2_000_000
    assert time.process_time() - began < 3  # a fifth of a second where nothing else runs
    assert tokens.item(0).tolist() == tokens.item(6399).tolist()


def test_both_are_registered() -> None:
    assert get_encoding("uci-square-72") is davis
    assert get_encoding("uci-square-77") is lcb
