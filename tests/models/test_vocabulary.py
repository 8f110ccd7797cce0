"""Models whose tokens are in another order than the encoding's: read in the right order, or refused with the reason."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chess
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from chessreg.encodings import get_encoding
from chessreg.encodings.uci_square import davis, lcb
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, load_model, save_checkpoint
from chessreg.models.importers import convert_checkpoint
from chessreg.models.importers.vocabulary import FILES, match_encoding, read_vocabulary
from tests.language_models import hugging_face_model
from tests.models.foreign import nanogpt_checkpoint, written
from tests.quick import quick_first

CHARACTERS = get_encoding("pgn-char-32").vocabulary
KARVONEN_META = "probes/karvonen-meta.pkl"


def shuffled(count: int, seed: int = 1) -> list[int]:
    rows = list(range(count))
    random.Random(seed).shuffle(rows)
    return rows


def texts(rows: Sequence[int], others: Sequence[str] = ()) -> list[str]:
    """The text of each row, where id i of pgn-char-32 is in row rows[i]; the rows left over have `others`."""
    named = dict(zip(rows, CHARACTERS, strict=False))
    left = iter(others)
    return [named[row] if row in named else next(left) for row in range(len(named) + len(others))]


def ids(vocabulary: Sequence[str]) -> dict[str, int]:
    return {text: number for number, text in enumerate(vocabulary)}


def save_json(name: str, content: Any) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(json.dumps(content)) and None


def save_pickle(content: Any, protocol: int = 4) -> Callable[[Path], None]:
    return lambda folder: (folder / "meta.pkl").write_bytes(pickle.dumps(content, protocol)) and None


def tokenizer(kind: str, vocabulary: Any, **model: Any) -> Callable[[Path], None]:
    return save_json("tokenizer.json", {"model": {"type": kind, "vocab": vocabulary, **model}, "added_tokens": []})


def merges(vocabulary: Sequence[str], text: str) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        save_json("vocab.json", ids(vocabulary))(folder)
        (folder / "merges.txt").write_text(f"#version: 0.2\n{text}\n")

    return save


def added(vocabulary: Sequence[str], more: dict[str, int]) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        save_json("vocab.json", ids(vocabulary))(folder)
        save_json("added_tokens.json", more)(folder)

    return save


ROWS, WIDER = shuffled(32), shuffled(40)
PLAIN = texts(ROWS)
OTHERS = ["\n", "<pad>", "1-0", "0-1", "*", "/", "i", "~"]
WIDE = texts(WIDER, OTHERS)
LAYOUTS: dict[str, tuple[list[int], Callable[[Path], None]]] = {
    "vocab.json": (ROWS, save_json("vocab.json", ids(PLAIN))),
    "id to text": (ROWS, save_json("vocab.json", {str(n): text for n, text in enumerate(PLAIN)})),
    "a list": (ROWS, save_json("vocab.json", PLAIN)),
    "stoi in JSON": (ROWS, save_json("vocab.json", {"stoi": ids(PLAIN)})),
    "vocab.txt": (ROWS, lambda folder: (folder / "vocab.txt").write_text("\n".join(PLAIN) + "\n") and None),
    "CRLF": (ROWS, lambda folder: (folder / "vocab.txt").write_bytes("\r\n".join(PLAIN).encode()) and None),
    "WordLevel": (ROWS, tokenizer("WordLevel", ids(PLAIN))),
    "byte-level BPE": (ROWS, tokenizer("BPE", ids(["Ġ" if text == " " else text for text in PLAIN]), merges=[])),
    "BPE without the merge": ([*ROWS, 32], tokenizer("BPE", ids([*PLAIN, "e4"]), merges=[])),
    "Unigram": (ROWS, tokenizer("Unigram", [["▁" if text == " " else text, -1.0] for text in PLAIN])),
    "merges.txt of others": ([*ROWS, 32], merges([*PLAIN, "xy"], "x y")),
    "added tokens": ([*ROWS, 32], added(PLAIN, {"<pad>": 32})),
    "meta.pkl": (ROWS, save_pickle({"vocab_size": 32, "stoi": ids(PLAIN), "itos": dict(enumerate(PLAIN))})),
    "itos as a list": (ROWS, save_pickle({"itos": PLAIN}, protocol=0)),
    "char_ords": (
        [row + 7 for row in ROWS] + list(range(7)),
        save_json("tokenizer_config.json", {"char_ords": [ord(text) for text in PLAIN], "model_max_length": 64}),
    ),
    "tokens that no game has": (WIDER, save_json("vocab.json", ids(WIDE))),
    "rows without a token": (ROWS + list(range(32, 50)), save_json("vocab.json", ids(PLAIN))),
    "in order": (list(range(32)), save_json("vocab.json", ids(CHARACTERS))),
}


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("layout", quick_first(7, LAYOUTS))
def test_a_folder_is_read_in_the_order_of_its_vocabulary(layout: str, tmp_path: Path) -> None:
    rows, write = LAYOUTS[layout]
    original = hugging_face_model("gpt2", len(rows), context=64)
    write(saved(original, tmp_path / "theirs"))
    report = convert_checkpoint(tmp_path / "theirs", tmp_path / "out")
    tokens, places = torch.arange(64).reshape(2, 32) % 32, torch.tensor(rows[:32])
    expected = original(places[tokens]).logits[..., places]
    assert torch.allclose(load_model(tmp_path / "out")(tokens), expected, atol=1e-5)
    assert (report.info.encoding, report.info.architecture["vocab_size"]) == ("pgn-char-32", 32)
    record = report.info.source["tokenizer"]
    assert record["file"] in FILES
    if layout == "in order":
        assert "rows" not in record
    else:
        assert (record["rows"], record["dropped_rows"]) == (rows[:32], len(rows) - 32)
    if layout == "tokens that no game has":
        assert sorted(record["dropped"]) == sorted(["\\n", *OTHERS[1:]])


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("tied", quick_first(1, [True, False]))
def test_every_family_is_reordered(family: str, tied: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    rows = shuffled(35)
    original = hugging_face_model(family, 35, context=64)
    config = original.config
    config.tie_word_embeddings, config.pad_token_id, config.eos_token_id = tied, rows[3], rows[34]
    torch.manual_seed(0)
    original = AutoModelForCausalLM.from_config(config).eval()
    save_json("vocab.json", ids(texts(rows, ["<a>", "<b>", "<c>"])))(saved(original, tmp_path / "theirs"))
    convert_checkpoint(tmp_path / "theirs", tmp_path / "out")
    tokens, places = torch.arange(64).reshape(2, 32) % 32, torch.tensor(rows[:32])
    expected = original(places[tokens]).logits[..., places]
    assert torch.allclose(load_model(tmp_path / "out")(tokens), expected, atol=1e-4)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()  # other tools read the stored data
    assert torch.allclose(again(tokens).logits, expected, atol=1e-4)
    assert again.config.eos_token_id is None


@pytest.mark.parametrize(("given", "more"), quick_first(1, [(davis, []), (lcb, []), (davis, [*"PQ", "<mask>"])]))
def test_vocabularies_of_squares_in_any_order_are_reordered(given: Any, more: list[str], tmp_path: Path) -> None:
    vocabulary = [*given.vocabulary, *more]
    random.Random(2).shuffle(vocabulary)
    original = hugging_face_model("gpt2", len(vocabulary), context=128)
    save_json("vocab.json", ids(vocabulary))(saved(original, tmp_path / "theirs"))
    report = convert_checkpoint(tmp_path / "theirs", tmp_path / "out")
    assert report.info.encoding == given.name
    tokens = torch.from_numpy(given.encode("e2e4 e7e8q").astype("int64"))[None]
    places = torch.tensor([vocabulary.index(text) for text in given.vocabulary])
    expected = original(places[tokens]).logits[..., places]
    assert torch.allclose(load_model(tmp_path / "out")(tokens), expected, atol=1e-5)
    assert sorted(report.info.source["tokenizer"]["dropped"]) == sorted(more)


def test_characters_of_positions_in_another_order_are_reordered_or_contradict_a_folder_of_ours(tmp_path: Path) -> None:
    fen = get_encoding("fen-77")
    vocabulary = list(fen.vocabulary)
    random.Random(3).shuffle(vocabulary)
    original = hugging_face_model("gpt2", 31, context=128)
    save_json("vocab.json", ids(vocabulary))(saved(original, tmp_path / "theirs"))
    report = convert_checkpoint(tmp_path / "theirs", tmp_path / "out")
    tokens = torch.from_numpy(fen.encode(chess.STARTING_FEN).astype("int64"))[None]
    places = torch.tensor([vocabulary.index(text) for text in fen.vocabulary])
    assert report.info.encoding == "fen-77"
    assert torch.allclose(load_model(tmp_path / "out")(tokens), original(places[tokens]).logits[..., places], atol=1e-5)
    save_json("vocab.json", ids(vocabulary))(tmp_path / "out")
    with pytest.raises(
        BadInputError, match=r"out/vocab.json has the tokens of fen-77 in a different order from that in chessreg"
    ):
        convert_checkpoint(tmp_path / "out", tmp_path / "again")


REFUSED = {
    "merges": (tokenizer("BPE", ids([*PLAIN, "e4"]), merges=["e 4"]), "its token 'e4' joins several tokens"),
    "pairs": (tokenizer("BPE", ids([*PLAIN, "e4"]), merges=[["e", "4"]]), "its token 'e4' joins several tokens"),
    "merges.txt": (merges([*PLAIN, "O-"], "O -"), "its token 'O-' joins several tokens"),
    "moves as words": (save_json("vocab.json", ids([*PLAIN, "Nf3"])), "its token 'Nf3' joins several tokens"),
    "Llama 3": (tokenizer("BPE", ids([*PLAIN, "e4"]), merges=[], ignore_merges=True), "'e4' joins"),
    "a missing character": (save_json("vocab.json", ids([t for t in PLAIN if t != "="])), "it has no token '='"),
    "lower case": (save_json("vocab.json", ids([t.lower() for t in PLAIN if t not in "B"])), "no token 'B' and 5 more"),
    "other words": (save_json("vocab.json", ids([f"w{n}" for n in range(32)])), "which no encoding has"),
    "one id twice": (save_json("vocab.json", {**ids(PLAIN), "~": 3}), "the id 3 is that of"),
    "one text twice": (save_json("vocab.json", [*PLAIN, "e"]), "has the token 'e' twice"),
    "a negative id": (save_json("vocab.json", {**ids(PLAIN), "~": -1}), "the id of '~' is '-1'"),
    "a fraction": (save_json("vocab.json", {**ids(PLAIN), "~": 32.5}), "the id of '~' is '32.5'"),
    "ids beyond the rows": (save_json("vocab.json", {t: n + 1 for t, n in ids(PLAIN).items()}), "names row 32"),
    "not JSON": (lambda folder: (folder / "vocab.json").write_text("{"), "theirs/vocab.json is not a vocabulary"),
    "deep JSON": (lambda folder: (folder / "vocab.json").write_text("[" * 100_000), "is not a vocabulary"),
    "bytes": (lambda folder: (folder / "vocab.json").write_bytes(bytes(range(256))), "is not a vocabulary"),
    "stoi against itos": (save_pickle({"stoi": ids(PLAIN), "itos": PLAIN[::-1]}), "its stoi and itos disagree"),
    "another pickle": (save_pickle({"games": 3}), "it has neither stoi nor itos"),
    "squares": (save_json("vocab.json", ids(davis.vocabulary)), "vocab.json names row 71"),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_first(8, REFUSED))
def test_a_vocabulary_that_does_not_fit_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    write, reason = REFUSED[name]
    write(saved(hugging_face_model("gpt2", 32, context=64), tmp_path / "theirs"))  # type: ignore[operator]
    with pytest.raises(BadInputError) as caught:
        convert_checkpoint(tmp_path / "theirs", tmp_path / "out")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def save_characters(folder: Path, change: Callable[[Any], None] = lambda _: None) -> None:
    """Save a tokenizer of PGN characters in another order, changed by `change`, as tokenizer.json."""
    made = Tokenizer(models.WordLevel(ids([*PLAIN, "<s>"]), unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.add_special_tokens(["<s>"])
    change(made)
    made.save(str(folder / "tokenizer.json"))


def test_a_tokenizer_of_characters_is_read(tmp_path: Path) -> None:
    save_characters(tmp_path)
    found, rows = match_encoding(read_vocabulary(tmp_path), path=tmp_path)
    assert (found.name, list(rows.rows)) == ("pgn-char-32", [PLAIN.index(text) for text in CHARACTERS])


CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "lower case": (lambda made: setattr(made, "normalizer", normalizers.Lowercase()), "its tokenizer reads 'B' as 'b'"),
    "spaces": (lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.Whitespace()), "its tokenizer drops ' '"),
    "first token": (
        lambda made: setattr(made, "post_processor", processors.TemplateProcessing("<s> $A", None, [("<s>", 32)])),
        "its tokenizer begins a text with '<s>', not with ';'",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_tokenizer_that_changes_games_is_refused(name: str, tmp_path: Path) -> None:
    change, reason = CHANGES[name]
    save_characters(tmp_path, change)
    with pytest.raises(BadInputError) as caught:
        match_encoding(read_vocabulary(tmp_path), path=tmp_path)
    assert reason in str(caught.value)


# -- nanoGPT --------------------------------------------------------------------------------------------------------


def place_of_meta(where: str, folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Save a permuted checkpoint's stoi and itos where a user may have them; the options of the import."""
    checkpoint, options = nanogpt_checkpoint(), dict[str, Any]()
    data = folder if where == "next to it" else folder / "data" / "lichess"
    data.mkdir(parents=True, exist_ok=True)
    if where == "in the file":
        checkpoint |= {"meta": meta}
    else:
        save_pickle(meta)(data)
    if where == "the file given":
        options = {"vocabulary": data / "meta.pkl"}
    if where == "its folder given":
        options = {"vocabulary": data}
    if where == "nanoGPT's data folder given":
        options, checkpoint["config"] = {"vocabulary": data.parent}, {"dataset": "lichess"}
    written(checkpoint, folder / "ckpt.pt")
    return options


@pytest.mark.parametrize(
    "where", ["next to it", "in the file", "the file given", "its folder given", "nanoGPT's data folder given"]
)
def test_a_nanogpt_file_is_read_in_the_order_of_its_meta(where: str, tmp_path: Path) -> None:
    options = place_of_meta(where, tmp_path, {"stoi": ids(PLAIN), "itos": dict(enumerate(PLAIN)), "vocab_size": 32})
    report = convert_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out", **options)
    (tmp_path / "alone").mkdir()
    convert_checkpoint(written(nanogpt_checkpoint(), tmp_path / "alone" / "ckpt.pt"), tmp_path / "unordered")
    tokens, places = torch.arange(64).reshape(2, 32) % 32, torch.tensor(ROWS)
    expected = load_model(tmp_path / "unordered")(places[tokens])[..., places]
    assert torch.allclose(load_model(tmp_path / "out")(tokens), expected, atol=1e-5)
    assert report.info.source["tokenizer"]["rows"] == ROWS


def test_a_meta_with_more_tokens_than_rows_is_refused(tmp_path: Path) -> None:
    written(nanogpt_checkpoint(), tmp_path / "ckpt.pt")
    save_pickle({"stoi": ids([*PLAIN, "!"]), "itos": dict(enumerate([*PLAIN, "!"]))})(tmp_path)
    with pytest.raises(BadInputError, match=r"has a vocabulary of 32, but meta\.pkl has 33 tokens"):
        convert_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


HOSTILE = {
    "a function": None,
    "a place far away": b"\x80\x02}r\xff\xff\xff\x7f.",
    "tuples in tuples": b"\x80\x02}" + b")" + b"2\x86" * 60 + b"K\x01s.",
    "an extension": b"\x80\x02\x82\x01.",
    "a long text": b"\x80\x04\x8d\xff\xff\xff\xff\xff\x00\x00\x00.",
    "its first half": pickle.dumps({"stoi": ids(PLAIN)})[:60],
    "nothing": b"",
    "a megabyte": b"\x80\x02]" + b"N" * (1 << 20) + b".",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_meta_is_refused_and_never_run(name: str, tmp_path: Path) -> None:
    path = written(nanogpt_checkpoint(), tmp_path / "ckpt.pt")
    hostile = HOSTILE[name] or pickle.dumps({"stoi": ids(PLAIN), "x": Bomb(tmp_path / "executed")})
    (tmp_path / "meta.pkl").write_bytes(hostile)
    with pytest.raises(BadInputError, match=r"meta\.pkl") as caught:
        convert_checkpoint(path, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "out").exists()


def test_karvonens_meta_is_the_encodings_order(shared_data: Path) -> None:
    found = read_vocabulary(shared_data / KARVONEN_META)
    assert found is not None
    assert [found.texts[number] for number in range(32)] == list(CHARACTERS)


def test_pipes_and_vocabularies_beyond_any_size_are_not_read(tmp_path: Path) -> None:
    folder = saved(hugging_face_model("gpt2", 32, context=64), tmp_path / "theirs")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInputError, match="pipe is neither a file nor a folder"):
        convert_checkpoint(tmp_path / "pipe", tmp_path / "out")
    with pytest.raises(BadInputError, match="pipe holds no vocabulary"):
        convert_checkpoint(folder, tmp_path / "out", vocabulary=tmp_path / "pipe")
    (folder / "vocab.txt").write_text("\n" * (1 << 20) + "\n")
    with pytest.raises(BadInputError, match="more than 1,048,576 lines"):
        convert_checkpoint(folder, tmp_path / "out")


def test_a_given_vocabulary_must_be_there_and_is_not_for_prompts(tmp_path: Path) -> None:
    from chessreg.encodings.prompts import make_prompt_encoding
    from tests.language_models import write_language_model

    path = written(nanogpt_checkpoint(), tmp_path / "ckpt.pt")
    with pytest.raises(NotFoundError, match=r"nowhere does not exist"):
        convert_checkpoint(path, tmp_path / "out", vocabulary=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="empty holds no vocabulary"):
        convert_checkpoint(path, tmp_path / "out", vocabulary=tmp_path / "empty")
    folder = write_language_model(tmp_path / "llama")
    with pytest.raises(BadInputError, match="--vocabulary does not apply to a prompt"):
        convert_checkpoint(folder, tmp_path / "out", encoding=make_prompt_encoding(folder), vocabulary=path)


# -- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "given", "outcome"),
    [
        (64, None, "pgn-char-32"),
        (128, "pgn-char-32", "pgn-char-32"),
        (80, "uci-square-77", "uci-square-77"),
        (
            128,
            None,
            "vocabulary of 128, but encoding pgn-char-32 has 32 .--encoding pgn-char-32 or --encoding uci-square-72 or "
            "--encoding uci-square-77",
        ),
        (
            80,
            None,
            "vocabulary of 80, but encoding pgn-char-32 has 32 .--encoding uci-square-72 or --encoding uci-square-77",
        ),
        (72, None, "vocabulary of 72, but encoding pgn-char-32 has 32 .--encoding uci-square-72"),
        (48, "pgn-char-32", "vocabulary of 48, but encoding pgn-char-32 has 32 .--vocabulary FILE"),
        (31, "pgn-char-32", "vocabulary of 31, but encoding pgn-char-32 has 32"),
    ],
)
def test_rows_that_only_round_up_a_vocabulary_are_dropped(
    size: int, given: str | None, outcome: str, tmp_path: Path
) -> None:
    path = written(nanogpt_checkpoint(vocab_size=size), tmp_path / "ckpt.pt")
    if " " in outcome:
        with pytest.raises(BadInputError, match=outcome):
            convert_checkpoint(path, tmp_path / "out", encoding=given)
        return
    report = convert_checkpoint(path, tmp_path / "out", encoding=given)
    kept = get_encoding(outcome).size
    assert (report.info.encoding, report.info.architecture["vocab_size"]) == (outcome, kept)
    assert report.info.source["tokenizer"]["dropped_rows"] == size - kept
    embedding = nanogpt_checkpoint(vocab_size=size)["model"]["_orig_mod.transformer.wte.weight"]
    assert torch.equal(load_model(tmp_path / "out").wte.weight, embedding[:kept])


def test_an_adapter_that_cannot_reorder_says_so(tmp_path: Path) -> None:
    from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder

    with pytest.raises(BadInputError, match="the vocabulary of a fen-encoder model cannot be reordered"):
        FenEncoder(FenConfig(1, 1, 8)).with_vocabulary([1, 0])


def test_a_folder_of_ours_keeps_its_bytes_with_a_vocabulary_in_order(tmp_path: Path) -> None:
    model = make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=16, vocab_size=32), 0)
    save_checkpoint(model, tmp_path / "ours", CheckpointInfo.from_network(model, "pgn-char-32"))
    before = convert_checkpoint(tmp_path / "ours", tmp_path / "one").digest
    save_json("vocab.json", ids(CHARACTERS))(tmp_path / "ours")
    assert convert_checkpoint(tmp_path / "ours", tmp_path / "two").digest == before
