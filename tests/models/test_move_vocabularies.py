"""Models with a token per move, or tokens of piece and squares, are read with the folder's own vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from chessreg.encodings.move_tokens import MOVES_FILE, Spelling
from chessreg.entities.checkpoint import export_checkpoint, import_checkpoint
from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.legality import LegalitySpec
from chessreg.models.importers import convert_checkpoint
from chessreg.models.language_model import LanguageModel
from chessreg.session import Session
from tests.encodings.conftest import make_move_tokens
from tests.language_models import hugging_face_model
from tests.quick import quick_first

UCI = Spelling("{from}{to}")
PAIRS = Spelling("{color}{piece} {from} {to}", " {0}")
CONTEXT = 96


def save_folder(folder: Path, spelling: Spelling, family: str = "gpt2", drop: tuple[str, ...] = ()) -> Path:
    """A Hugging Face folder with random weights, whose tokenizer.json has the moves in one spelling."""
    texts = [text for text in make_move_tokens(spelling).vocabulary if text not in drop]
    hugging_face_model(family, len(texts), context=CONTEXT).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({text: number for number, text in enumerate(texts)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    return folder


@pytest.mark.parametrize(
    ("family", "spelling"), quick_first(1, [("gpt2", UCI), ("llama", PAIRS), ("gpt2", Spelling("san"))])
)
def test_an_imported_folder_keeps_its_ids_and_logits(family: str, spelling: Spelling, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    drop = ("<pad>",) if spelling is UCI else ()
    folder = save_folder(tmp_path / "theirs", spelling, family, drop)
    report = convert_checkpoint(folder, tmp_path / "ours")
    assert report.max_logit_difference < 1e-4
    made = LanguageModel.load(tmp_path / "ours")
    written = made.encoding
    assert written.spelling == spelling
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    board = chess.Board()
    for uci in ("e2e4", "d7d5", "e4d5"):
        board.push_uci(uci)
    ids = written.prompt(board)
    assert list(ids) == tokenizer.encode("<bos> " + " ".join(map(written.vocabulary.__getitem__, ids[1:]))).ids
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(folder).eval()(torch.tensor([ids])).logits
    assert float((made.logits(np.array(ids)) - theirs).abs().max()) < 1e-4
    assert report.games.turns > 0
    assert report.games.legal is not None


def test_it_plays_is_measured_and_cached(world_session: Session, tmp_path: Path) -> None:
    session = world_session
    folder = save_folder(tmp_path / "theirs", PAIRS)
    made = import_checkpoint(session.database, session.store, folder, name="pairs")
    again = import_checkpoint(session.database, session.store, folder)
    assert (made.is_new, again.is_new, again.id) == (True, False, made.id)
    legality = session.run(LegalitySpec(checkpoint="pairs", dataset="sample:test", games=3, every=8, mass=True))
    assert legality.state == "complete"
    cached = session.run(CacheSpec(checkpoint="pairs", dataset="sample:test", games=3, sites="turns"), name="of-pairs")
    assert cached.state == "complete"
    rows = session.cache("of-pairs").read(layer=0)
    assert len(rows.residual) == len(rows.ply) > 0
    assert set(np.diff(rows.ply[rows.game == rows.game[0]])) == {1}
    out = export_checkpoint(session.database, session.store, "pairs", tmp_path / "out")
    from transformers import AutoTokenizer

    written = session.model("pairs").encoding
    ids = written.encode("WPe2e4 BPd7d5")
    assert AutoTokenizer.from_pretrained(out)("WPe2e4 BPd7d5")["input_ids"] == ids.tolist()
    assert (out / MOVES_FILE).is_file()


def test_a_move_that_no_token_writes_is_no_answer_and_unknown_in_a_game() -> None:
    written: Any = make_move_tokens(UCI)
    without = type(written)([text for text in written.vocabulary if text != "a7a8n"], UCI, written.special)
    board = chess.Board("8/P6k/8/8/8/8/8/7K w - - 0 1")
    knight = chess.Move.from_uci("a7a8n")
    assert knight in written.answers(board)
    assert knight not in without.answers(board)
    assert set(written.answers(board)) - {knight} == set(without.answers(board))
    with pytest.raises(BadInputError, match="no tokens for the move a7a8n"):
        without.answer(board, knight)


def test_a_vocabulary_without_some_legal_moves_is_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "theirs", UCI, drop=("e2e4", "h7h6"))
    with pytest.raises(BadInputError, match=r"has no tokens for \d+ of the [\d,]+ legal moves of the sample games"):
        convert_checkpoint(folder, tmp_path / "ours")


@pytest.mark.slow
def test_a_vocabulary_with_joined_tokens_is_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "theirs", PAIRS)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["e2e4"] = vocabulary.pop("<pad>")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadInputError, match="its token 'e2e4' joins several tokens of a move"):
        convert_checkpoint(folder, tmp_path / "ours")


def test_a_vocabulary_without_a_first_token_is_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "theirs", UCI, drop=("<bos>", "<eos>"))
    with pytest.raises(BadInputError, match="no known token begins a game"):
        convert_checkpoint(folder, tmp_path / "ours")


def test_a_first_token_that_the_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "theirs", UCI)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<game>"}))
    with pytest.raises(BadInputError, match=r"tokenizer_config\.json names '<game>' as bos_token"):
        convert_checkpoint(folder, tmp_path / "ours")


@pytest.mark.slow
def test_a_changed_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "theirs", UCI)
    convert_checkpoint(folder, tmp_path / "ours")
    record = json.loads((tmp_path / "ours" / MOVES_FILE).read_text())
    record["vocabulary"].reverse()
    (tmp_path / "ours" / MOVES_FILE).write_text(json.dumps(record))
    with pytest.raises(BadInputError, match="holds the encoding moves-"):
        _ = LanguageModel.load(tmp_path / "ours").encoding
