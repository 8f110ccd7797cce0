"""`chessreg import`, `export` and `checkpoint`, as typed. No file's code ever runs, no error leaves a trace."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import chess.pgn
import pytest
import torch
import zstandard
from click.testing import CliRunner

from chessreg.cli import chessreg
from chessreg.encodings import get_encoding, list_encodings
from chessreg.entities import load_entity
from chessreg.models.language_model import LanguageModel
from chessreg.registry import tables
from chessreg.registry.database import Database
from tests.models.foreign import save_maia2_file

torch.set_num_threads(1)  # tiny matrices: a second thread only waits, the longer the busier the machine


def nanogpt(path: Path, vocabulary: int = 32, seed: int = 0) -> Path:
    """A checkpoint as nanoGPT's training script saves one."""
    generator = torch.Generator().manual_seed(seed)
    d, layers, block = 16, 2, 48
    sizes = {"transformer.wte.weight": (vocabulary, d), "transformer.wpe.weight": (block, d)}
    for layer in range(layers):
        h = f"transformer.h.{layer}"
        sizes |= {f"{h}.ln_1.weight": (d,), f"{h}.ln_2.weight": (d,)}
        sizes |= {f"{h}.attn.c_attn.weight": (3 * d, d), f"{h}.attn.c_proj.weight": (d, d)}
        sizes |= {f"{h}.mlp.c_fc.weight": (4 * d, d), f"{h}.mlp.c_proj.weight": (d, 4 * d)}
    sizes["transformer.ln_f.weight"] = (d,)
    weights = {name: 0.3 * torch.randn(*size, generator=generator) for name, size in sizes.items()}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    arguments = {
        "n_layer": layers,
        "n_head": 2,
        "n_embd": d,
        "block_size": block,
        "vocab_size": vocabulary,
        "bias": False,
    }
    torch.save({"model": weights, "model_args": arguments, "iter_num": 10, "config": {"dataset": "lichess"}}, path)
    return path


def test_import_list_show_export_and_back(here: Any, tmp_path: Path) -> None:
    made = here.json("import", "checkpoint", nanogpt(tmp_path / "ckpt.pt"), "--name", "tiny")
    assert (made["name"], made["source_format"], made["layers"], made["created"]) == ("tiny", "nanogpt", 2, True)
    assert made["max_logit_difference"] < 1e-4
    listed = here.json("checkpoint", "list")
    assert [row["name"] for row in listed] == ["tiny"]
    assert set(tables.Checkpoint.__table__.columns.keys()) <= listed[0].keys()
    shown = here.json("checkpoint", "show", "tiny")
    assert (shown["artifact"], shown["trained_on"], shown["parent"]) == (made["artifact"], None, None)
    assert here("checkpoint", "show", "tiny") == 0
    assert "trained on" in here.out
    assert "parent" not in here.out  # it has none
    out = here.json("export", "checkpoint", "tiny", "out")
    assert sorted(out["files"]) == [
        "README.md", "chessreg.json", "config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    before = here.state()
    again = here.json("import", "checkpoint", "out")
    assert (again["id"], again["created"]) == (made["id"], False)
    assert "already checkpoint tiny" in here.err
    assert here("export", "checkpoint", "tiny", "out") == 4
    assert here.state() == before


def test_an_import_prints_and_keeps_how_well_the_model_predicts_games(here: Any, tmp_path: Path) -> None:
    """An untrained model is allowed, with a warning that `show` repeats."""
    characters = [*get_encoding("pgn-char-32").vocabulary[::-1], "\x1b", "~"]
    source = nanogpt(tmp_path / "ckpt.pt", vocabulary=34)
    (tmp_path / "vocab.json").write_text(json.dumps({text: number for number, text in enumerate(characters)}))
    assert here("import", "checkpoint", source, "--vocabulary", "vocab.json", "--name", "tiny") == 0
    names = "loss on sample games", "loss of token frequencies alone"
    loss, entropy = (re.search(rf"^{name}, nats per token +([\d.]+)$", here.out, re.M)[1] for name in names)
    assert float(loss) > float(entropy)
    warning = "warning: the model does not predict the sample games: "
    assert warning in here.err
    assert here("checkpoint", "show", "tiny") == 0
    assert warning in here.err
    assert "the order of its tokens is known from vocab.json" in here.err
    assert re.search(r"^first-try legal moves in sample games +[\d.]+ %$", here.out, re.M)
    assert "vocab.json, reordered, 2 rows dropped ('\\x1b', '~')" in here.out
    shown = here.json("checkpoint", "show", "tiny")
    assert shown["detail"]["source"]["tokenizer"]["rows"] == list(range(31, -1, -1))
    games = shown["detail"]["games"]
    assert (games["games"], games["learned"], shown["import_legal"]) == (20, False, games["legal"])
    asked = "select checkpoint, import_loss, import_entropy, import_legal from checkpoints"
    (row,) = here.json("query", "--sql", asked)["rows"]
    assert row == {"checkpoint": "tiny", **{f"import_{n}": games[n] for n in ("loss", "entropy", "legal")}}
    assert here("import", "checkpoint", source, "--vocabulary", "nowhere.json") == 3
    assert here("import", "checkpoint", source, "--heads", "0") == 2
    assert here("import", "checkpoint", "--reference", "--heads", "2") == 2


def test_a_model_of_maia_2_keeps_its_ratings(here: Any, tmp_path: Path) -> None:
    source = save_maia2_file(tmp_path / "rapid_model.pt")
    made = here.json("import", "checkpoint", source, "--rating", "1900", "--opponent-rating", "1600", "--name", "maia")
    assert (made["architecture"], made["tokenizer"], made["source_format"]) == ("maia-2", "maia-2", "maia2")
    assert here("checkpoint", "show", "maia") == 0
    assert "a player rated 1900 against 1600" in here.err
    assert "It is untrained or hardly trained" in here.err
    assert "--vocabulary" not in here.err
    with Database.open(tmp_path / ".chessreg" / "registry.db") as database, database.read() as sql:
        command, _ = load_entity("checkpoint").describe_origin(sql, sql.query(tables.Checkpoint).one())
    assert command == "chessreg import checkpoint rapid_model.pt --rating 1900 --opponent-rating 1600"
    here("export", "checkpoint", "maia", "out")
    assert "- Ratings of the player and its opponent: 1900 and 1600" in (tmp_path / "out" / "README.md").read_text()
    assert here.json("import", "checkpoint", "out")["id"] == made["id"]
    assert here.json("import", "checkpoint", source)["id"] != made["id"]
    before = here.state()
    assert here("import", "checkpoint", source, "--rating", "9000") == 2
    assert here("import", "checkpoint", nanogpt(tmp_path / "ckpt.pt"), "--rating", "1500") == 4
    assert "--rating" in here.err
    assert here("import", "checkpoint", "--reference", "--rating", "0") == 2
    assert here.state() == before


@pytest.mark.slow
def test_a_checkpoint_that_was_not_measured_learns_it_from_an_import(here: Any, tmp_path: Path) -> None:
    here("import", "checkpoint", nanogpt(tmp_path / "ckpt.pt"), "--name", "tiny")
    here("checkpoint", "twin", "tiny", "--name", "untrained")
    assert here.json("checkpoint", "show", "untrained")["import_loss"] is None
    here("checkpoint", "export", "untrained", tmp_path / "out")
    again = here.json("import", "checkpoint", tmp_path / "out")
    assert (again["created"], again["name"]) == (False, "untrained")
    assert again["import_loss"] > again["import_entropy"]
    assert here.json("checkpoint", "show", "untrained")["import_loss"] == again["import_loss"]


def test_a_twin_names_its_parent(here: Any, tmp_path: Path) -> None:
    here("import", "checkpoint", nanogpt(tmp_path / "ckpt.pt"), "--name", "tiny")
    assert here.json("checkpoint", "twin", "tiny", "--name", "untrained", "--seed", "1")["created"] is True
    shown = here.json("checkpoint", "show", "untrained")
    assert (shown["parent"], shown["trained_on"], shown["tokens_seen"]) == ("tiny", [], 0)
    before = here.state()
    assert here.json("checkpoint", "twin", "tiny", "--name", "untrained", "--seed", "1")["created"] is False
    assert here("checkpoint", "twin", "tiny", "--name", "untrained", "--seed", "2") == 4
    assert here("checkpoint", "twin", "nobody") == 3
    assert here.state() == before


class Bomb:
    """A pickle that leaves a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def with_bomb(path: Path) -> None:
    path.write_bytes(pickle.dumps({"model": Bomb(path.parent / "exploded"), "model_args": {}}))


def torch_bomb(path: Path) -> None:
    torch.save({"model": Bomb(path.parent / "exploded"), "model_args": {}}, path)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (with_bomb, "execute code"),
        (torch_bomb, "execute code"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_text("not a model"), "not a"),
        (lambda path: path.write_bytes(nanogpt(path).read_bytes()[:9000]), "damaged"),
        (lambda path: nanogpt(path, vocabulary=50), "vocabulary of 50, but encoding pgn-char-32 has 32"),
        (lambda path: torch.save({"weights": torch.ones(3)}, path), "not a checkpoint that chessreg can read"),
        (lambda path: path.mkdir(), "not a checkpoint that chessreg can read"),
    ],
)
def test_what_is_no_checkpoint_is_refused(here: Any, tmp_path: Path, write: Callable[[Path], Any], said: str) -> None:
    path = tmp_path / "bad.pt"
    write(path)
    before = here.state()
    assert here("import", "checkpoint", path, "--name", "bad") == 4
    assert said in here.err
    assert here.err.count("error:") == 1
    assert "Traceback" not in here.err
    assert not (tmp_path / "exploded").exists()
    assert here.state() == before
    assert here("import", "checkpoint", path, "--json") == 4
    assert json.loads(here.err)["code"] == 4
    assert here.out == ""


def test_errors_of_names_and_paths(here: Any, tmp_path: Path) -> None:
    source = nanogpt(tmp_path / "ckpt.pt")
    before = here.state()
    assert here("import", "checkpoint", "nowhere.pt") == 3
    assert here("import", "checkpoint", source, "--encoding", "klingon") == 3
    assert here("import", "checkpoint", source, "--trained-on", "nothing") == 3
    assert here("import", "checkpoint", source, "--name", "no/name") == 4
    assert here("import", "checkpoint") == 2
    assert here("import", "checkpoint", source, "--reference") == 2
    assert here("checkpoint", "show", "nobody") == 3
    assert here("export", "checkpoint", "nobody", "out") == 3
    assert here.state() == before


def test_a_full_disk_leaves_nothing(here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = nanogpt(tmp_path / "ckpt.pt")
    before = here.state()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("store.artifacts.sync_tree", full)
        assert here("import", "checkpoint", source) == 1
    assert "the disk is full" in here.err
    assert here.state() == before
    assert here("import", "checkpoint", source, "--name", "tiny") == 0
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", full)
        assert here("export", "checkpoint", "tiny", tmp_path / "out") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".chessreg", "ckpt.pt"]


@pytest.mark.slow
def test_the_reference_models(here: Any) -> None:
    made = here.json("import", "checkpoint", "--reference")
    assert (made["name"], made["tokenizer"], made["block_size"]) == ("reference", "pgn-char-32", 1023)
    assert here.json("import", "checkpoint", "--reference=pgn", "--name", "again")["id"] == made["id"]
    assert "these weights are already checkpoint again (also reference); nothing was added" in here.err
    for name in ("again", "reference"):  # either spelling continues
        assert here.json("checkpoint", "show", name)["id"] == made["id"]
    assert here.json("import", "checkpoint", "--reference")["name"] == "again"
    assert len(here.json("checkpoint", "list")) == 1
    uci = here.json("import", "checkpoint", "--reference=uci")
    assert (uci["name"], uci["tokenizer"], uci["block_size"]) == ("uci", "uci-square-72", 255)
    fen = here.json("import", "checkpoint", "--reference=fen")
    assert (fen["name"], fen["tokenizer"], fen["architecture"]) == ("fen", "fen-77", "fen-encoder")
    assert fen["max_logit_difference"] < 1e-9  # from a pass over the raw weights that shares no code with the model
    before = here.state()
    assert here("import", "checkpoint", "--reference=llama") == 2
    assert here("import", "checkpoint", "--reference=uci", "--encoding", "pgn-char-32") == 2
    assert here("import", "checkpoint", "model.pt", "--reference=uci") == 2
    assert here.state() == before


def test_the_model_of_uci_squares_is_small_and_begins_legal_moves() -> None:
    """In the sample games' first 30 plies its most probable square is one that a piece can leave."""
    data, uci = files("chessreg") / "data", get_encoding("uci-square-72")
    with as_file(data / "uci-model") as folder:
        assert sum(path.stat().st_size for path in folder.iterdir()) < 8 << 20
        model = LanguageModel.load(folder, device="cpu")
    text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader((data / "sample-games.pgn.zst").open("rb")))
    looked = legal = 0
    for _ in range(12):
        game = chess.pgn.read_game(text)
        moves = list(game.mainline_moves())[:30]
        board, sans = game.board(), []
        origins = []
        for move in moves:
            origins.append({uci.answer(board, other)[0] for other in board.legal_moves})
            sans.append(board.san_and_push(move))
        best = model.logits(torch.tensor([uci.prompt(sans)]))[0].argmax(-1).tolist()
        looked += len(moves)
        legal += sum(best[2 * ply] in origins[ply] for ply in range(len(moves)))
    assert legal / looked >= 0.8


@pytest.mark.slow
def test_the_model_of_positions_is_small_and_most_of_its_moves_are_legal() -> None:
    """Of any of the 1,968 actions the most probable one, in the sample games' first 40 plies."""
    data = files("chessreg") / "data"
    with as_file(data / "fen-model") as folder:
        assert sum(path.stat().st_size for path in folder.iterdir()) < 8 << 20
        model = LanguageModel.load(folder, device="cpu")
    text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader((data / "sample-games.pgn.zst").open("rb")))
    boards = []
    for _ in range(10):
        board = chess.Board()
        for move in list(chess.pgn.read_game(text).mainline_moves())[:40]:
            boards.append(board.copy(stack=False))
            board.push(move)
    tokens = torch.from_numpy(model.encoding.boards(boards).ids.reshape(-1, 77).astype("int64"))
    best = model.logits(tokens)[:, 0].argmax(-1).tolist()
    legal = [model.encoding.parse([action], board) is not None for action, board in zip(best, boards, strict=True)]
    assert sum(legal) / len(legal) >= 0.8


@pytest.mark.slow
def test_the_shared_checkpoint_of_karvonens_layout(here: Any, shared_data: Path) -> None:
    made = here.json("import", "checkpoint", shared_data / "checkpoints" / "lichess-8x192-char.pt", "--name", "stopgap")
    assert (made["layers"], made["heads"], made["parameters"]) == (8, 6, 3_744_768)
    assert made["max_logit_difference"] < 1e-4


def test_the_help_of_an_import_and_of_a_training_lists_the_encodings() -> None:
    for words in (["import", "checkpoint", "--help"], ["run", "train", "--architecture", "gpt2", "--help"]):
        told = " ".join(CliRunner().invoke(chessreg, words).output.split())
        assert [name for name in list_encodings() if name not in told.replace("- ", "-")] == []
