"""Prompts over pretrained tokenizers: templates verbatim, characters alone, room for the answer (Junkin 2025)."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from chessreg.encodings.prompts import (
    TEMPLATES,
    PretrainedTokenizer,
    PromptEncoding,
    PromptSettings,
)
from chessreg.errors import BadInputError, NotFoundError
from tests.encodings.conftest import CharacterTable, boards

TABLE = CharacterTable.byte_level(0, bos=128000, end=128001, size=128256)
AFTER = "r1bqkb1r/pppp1ppp/2n2n2/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R b Kq e3 12 104"
EXPANDED = "br.bqkb.rpppp.ppp..n..n......p.....B.P........N..PPPP.PPPRNBQK..RKq..e312.104"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with merges, as Llama's and GPT-NeoX's are."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([*TEMPLATES.values(), *["pk"] * 50], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def text(one: PromptEncoding, position: str | chess.Board) -> str:
    return one._words.decode(one.boards([position]).ids.tolist())


def test_golden_characters_of_llama_and_neox() -> None:
    assert [TABLE.character(c) for c in "pkg1"] == [79, 74, 70, 16]
    neox = CharacterTable.byte_level(2, end=0, size=50304)
    assert [neox.character(c) for c in "pk"] == [81, 76]


def test_the_small_prompt_is_the_code_s() -> None:
    """`FEN: ` + 77 characters + `Best Move: `, bos in front, no legal moves (1.5)."""
    one = PromptEncoding(TABLE)
    assert text(one, AFTER) == f"FEN: {EXPANDED}Best Move: "
    assert one.boards([AFTER]).ids[0] == 128000
    assert one.answer(chess.Board(), chess.Move.from_uci("e2e4")) == (68, 17, 68, 19, 128001)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "junkin-small"])
def test_templates_are_written_verbatim_with_the_moves_in_python_chess_s_order(name: str) -> None:
    board = boards("castling long for both sides")[-1]
    moves = ", ".join(move.uci() for move in board.legal_moves)
    one = PromptEncoding(TABLE, PromptSettings(name))
    expanded = text(PromptEncoding(TABLE), board)[5:82]
    expected = TEMPLATES[name].replace("{FEN}", expanded).replace("{LM}", moves).removesuffix("{BM}")
    assert text(one, board) == expected


def test_the_paper_s_punctuation_is_kept_and_hashed() -> None:
    assert [".. " in TEMPLATES[f"junkin-{number}"] for number in range(1, 7)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    digest = hashlib.sha256("".join(TEMPLATES[f"junkin-{n}"] for n in range(1, 7)).encode()).hexdigest()
    assert digest == "407d19399856a5c82075568d6160fa60e44320b8163cc4c4e3203eb7b3545241"
    one, other = PromptSettings("junkin-1"), PromptSettings("junkin-1-code")
    assert len({one.digest, other.digest, PromptSettings("junkin-1", counters="blanked").digest}) == 3
    assert PromptSettings(TEMPLATES["junkin-1"]).digest == one.digest  # the text is hashed, not its name


def test_layout_counters_notation_and_last_separator_are_settings() -> None:
    slashes = PromptEncoding(TABLE, PromptSettings(layout="flattened_with_slashes"))
    assert "r.bqkb.r/pppp.ppp/..n..n../....p.../..B.P.../.....N../PPPP.PPP/RNBQK..R b Kq e3 12 104B" in text(
        slashes, AFTER
    )
    blanked = PromptEncoding(TABLE, PromptSettings(counters="blanked"))
    assert text(blanked, AFTER) == f"FEN: {EXPANDED[:71]}......Best Move: "
    assert blanked.decode(blanked.encode(AFTER)) == AFTER.replace("12 104", "0 1")
    both = PromptEncoding(TABLE, PromptSettings(layout="flattened_with_slashes", counters="blanked"))
    assert both.decode(both.encode(AFTER)) == AFTER.replace("12 104", "0 1")
    san = PromptEncoding(TABLE, PromptSettings("junkin-1", notation="san", last_separator=True))
    assert "The legal moves are: Nh3, Nf3, Nc3, Na3, h3" in text(san, chess.STARTING_FEN)
    assert "d4, c4, b4, a4, . Which" in text(san, chess.STARTING_FEN)
    assert san.parse("Nf3", chess.Board()) == chess.Move.from_uci("g1f3")


def test_squares_are_the_board_s_in_both_layouts() -> None:
    for layout in ("ruoss77", "flattened_with_slashes"):
        one = PromptEncoding(TABLE, PromptSettings("junkin-5", layout=layout))  # type: ignore[arg-type]
        tokens = one.boards([AFTER, chess.STARTING_FEN])
        found = one.sites("squares", tokens)
        for item, fen in enumerate((AFTER, chess.STARTING_FEN)):
            place = found.token[found.item == item]
            letters = one._words.decode(tokens.item(item)[place].tolist())
            board = chess.Board(fen)
            drawn = [board.piece_at(chess.square(file, rank)) for rank in range(7, -1, -1) for file in range(8)]
            assert letters == "".join(piece.symbol() if piece else "." for piece in drawn)
        assert one.sites("white-turns", tokens).item.tolist() == [1]
        assert one.sites("black-turns", tokens).phase.tolist() == [1]
        assert found.phase.tolist() == [1] * 64 + [0] * 64


def test_without_legal_moves_many_are_encoded_at_once_as_each_alone() -> None:
    fens = [board.fen() for board in boards("three queens, long disambiguation")]
    for settings in (PromptSettings(), PromptSettings(counters="blanked")):
        one = PromptEncoding(TABLE, settings)
        tokens = one.boards(fens)
        assert all(tokens.item(n).tolist() == one.encode(fen).tolist() for n, fen in enumerate(fens))
    assert len(one.boards([])) == 0


@pytest.mark.parametrize("missing", ["w", ".", "K", "q", "7"])
def test_a_missing_character_is_named(missing: str) -> None:
    ids = {chr(code): code for code in range(32, 127) if chr(code) != missing}
    with pytest.raises(BadInputError, match=f"'{missing}'"):
        PromptEncoding(CharacterTable(ids, end=0, size=128))


@pytest.mark.parametrize(
    ("template", "why"),
    [("{FEN} {XX} {BM}", "has no {XX}.*{FEN}, {LM} and {BM}"), ("{FEN} {LM} {LM} {BM}", "{LM} at most once.*twice")],
)
def test_a_part_that_is_none_or_stands_twice_is_named(template: str, why: str) -> None:
    with pytest.raises(BadInputError) as refused:
        PromptEncoding(TABLE, PromptSettings(template))
    assert re.search(why, f"{refused.value.message}; {refused.value.hint}")


@pytest.mark.parametrize("template", ["no places", "{FEN} {FEN} {BM}", "{LM} {FEN} {BM}", "{FEN} {BM} behind"])
def test_a_template_without_its_parts_is_refused(template: str) -> None:
    with pytest.raises((BadInputError, NotFoundError)):
        PromptEncoding(TABLE, PromptSettings(template))


def test_a_pretrained_tokenizer_writes_words_as_it_likes_and_the_board_in_characters(tokenizer: Path) -> None:
    words = PretrainedTokenizer(tokenizer, bos="<s>", end="</s>")
    one = PromptEncoding(words, PromptSettings("junkin-1"))
    ids = one.encode(AFTER)
    start = int(one.sites("fen", one.boards([AFTER])).token[0])
    assert one.decode(ids) == AFTER
    assert [words.decode([number]) for number in ids[start : start + 77].tolist()] == list(EXPANDED)
    assert start < len("You are a chess grandmaster. This is the board position in FEN notation: ")  # words are merged
    assert len(words.encode("pk")) == 1  # so "pk" would be one token
    board = chess.Board(AFTER)
    for move, answer in one.answers(board).items():
        assert len(answer) == len(move.uci()) + 1
        assert one.parse(answer, board) == move


def write_sentencepiece(path: Path, form: str) -> None:
    """A BPE that writes a space as `▁`, and puts one before every text: `normalized` as Llama 2's and TinyLlama's
    files are, `first` and `always` as later ones. A new line is a byte."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if form == "normalized":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=form, split=form == "always")
    strip = decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    letters = [*map(chr, range(33, 127)), "▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>", *bytes_], initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator([*TEMPLATES.values(), *["pk e2e4, e7e5, "] * 50], trainer)
    plain = json.loads(made.to_str())
    plain["added_tokens"] = [one for one in plain["added_tokens"] if not one["content"].startswith("<0x")]
    path.write_text(json.dumps(plain))


@pytest.mark.parametrize("form", ["normalized", "first", "always"])
@pytest.mark.parametrize("layout", ["ruoss77", "flattened_with_slashes"])
def test_a_tokenizer_that_puts_a_space_before_every_text_writes_prompts_as_they_are(
    form: str, layout: Any, tmp_path: Path
) -> None:
    """Llama 2, Mistral, TinyLlama: the parts of a prompt cannot be tokenized separately."""
    write_sentencepiece(tmp_path / "tokenizer.json", form)
    words = PretrainedTokenizer(tmp_path / "tokenizer.json", bos="<s>", end="</s>")
    assert words.encode("pk") != words.encode_inside("pk")
    board = chess.Board(AFTER)
    for template in TEMPLATES:
        one = PromptEncoding(words, PromptSettings(template, layout=layout, notation="san", last_separator=True))
        ids = one.boards([board]).ids.tolist()
        moves = "".join(f"{board.san(move)}, " for move in board.legal_moves)
        position = one._format_position(one._fen.boards([board]).ids)
        text = TEMPLATES[template].replace("{FEN}", position).replace("{LM}", moves).removesuffix("{BM}")
        assert words.decode(ids[1:]) == text, template
        assert one.decode(ids) == board.fen()
        start = len(one._prefix_ids)
        assert [words.decode([*words.encode("|"), number]) for number in ids[start : start + len(position)]] == [
            f"|{character}" for character in position
        ]
        for move, answer in one.answers(board).items():
            assert one.parse(answer, board) == move
            assert len(answer) == len(board.san(move)) + 1


def test_a_tokenizer_that_changes_the_words_is_refused(tmp_path: Path) -> None:
    """SentencePiece-like: a text comes with a space in front, and is not the template's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    ids = {character: number for number, character in enumerate(["<s>", "</s>", "▁", *map(chr, range(33, 127))])}
    made = Tokenizer(models.BPE(vocab=ids | {"▁w": 97}, merges=[("▁", "w")]))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="never")
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BadInputError, match="does not write the template as it is"):
        PromptEncoding(PretrainedTokenizer(tmp_path / "tokenizer.json", end="</s>"))


@pytest.mark.parametrize(("content", "error"), [(None, NotFoundError), ("{}", BadInputError)])
def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path, content: Any, error: type[Exception]) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error) as caught:
        PretrainedTokenizer(path, end="</s>")
    assert "\n" not in str(caught.value)


def test_a_special_token_that_is_not_there_is_named(tokenizer: Path) -> None:
    with pytest.raises(BadInputError, match=r"<\|pad\|>"):
        PretrainedTokenizer(tokenizer, end="</s>", pad="<|pad|>")


def test_padding_is_no_part_of_the_text() -> None:
    table = CharacterTable.byte_level(2, end=0, pad=1, size=50304)
    one = PromptEncoding(table)
    assert one.boundary_ids == {1}
    assert one.parse(np.array([*one.answer(chess.Board(), chess.Move.from_uci("e2e4")), 1]), chess.Board())
