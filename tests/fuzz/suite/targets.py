"""Every parser of bytes that others wrote, as a function of an input. It may raise an error that describes the problem
in words."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from commands import Commands
from mutate import APART

HERE = Path(__file__).resolve().parent
DEMO = HERE.parents[1] / "fixtures" / "demo" / "demo.zip"
MOVE_WORDS = """
e4 e5 Nf3 Nc6 Bb5 a6 O-O e8=Q e7e8q Qxf7# 1. 12... 1-0 0-1 1/2-1/2 * $1 { } ( ) ; % O-O-O 0-0 -- 0000 Z0
"""


class World:
    """Requirements of parsers: an empty folder for each input, and a registry with things in it."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="chessreg-fuzz-"))
        self.folder = self.root / "input"

    def close(self) -> None:
        if "session" in self.__dict__:
            self.session.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    @contextlib.contextmanager
    def fresh(self) -> Iterator[World]:
        """An empty folder, removed afterwards."""
        self.folder.mkdir()
        try:
            yield self
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @cached_property
    def demo(self) -> Path:
        """A finished registry and its store, upgraded."""
        from chessreg.registry import migrations

        with zipfile.ZipFile(DEMO) as packed:
            packed.extractall(self.root / "demo")
        migrations.upgrade_registry(self.root / "demo" / "registry.db")
        return self.root / "demo"

    @cached_property
    def session(self) -> Any:
        from chessreg.session import open_session

        return open_session(str(self.demo / "registry.db"), self.demo / "store")

    @cached_property
    def commands(self) -> Commands:
        return Commands(self.session)


@dataclass(frozen=True)
class Target:
    """A parser. `seeds` gives real inputs, `forms` their mutations, `words` the vocabulary of its field."""

    run: Callable[[World, bytes], object]
    seeds: Callable[[World], list[bytes]]
    forms: tuple[str, ...]
    words: tuple[str, ...] = ()


TARGETS: dict[str, Target] = {}


def target(forms: str, seeds: Callable[[World], list[bytes]], words: str = "") -> Callable[[Any], Any]:
    def add(run: Callable[[World, bytes], object]) -> Any:
        TARGETS[run.__name__] = Target(run, seeds, tuple(forms.split()), tuple(words.split()))
        return run

    return add


def members(suffix: str, most: int = 1 << 15) -> list[bytes]:
    """Files of the finished registry with names that end like this, each content once."""
    with zipfile.ZipFile(DEMO) as packed:
        found = [packed.read(i) for i in packed.infolist() if i.filename.endswith(suffix) and i.file_size <= most]
    return list(dict.fromkeys(found))


# -- games and positions ----------------------------------------------------------------------------------------------

PGN = b"""[Event "x"]
[Site "https://lichess.org/abcd1234"]
[Date "2013.01.01"]
[White "a"]
[Black "b"]
[Result "1-0"]
[WhiteElo "1500"]
[BlackElo "?"]
[ECO "C20"]
[TimeControl "60+0"]
[Termination "Normal"]

1. e4 { [%eval 0.17] [%clk 0:01:00] } e5 $1 2. Qh5?! (2. Nf3 Nc6) 2... Nc6 3. Bc4 Nf6?? 4. Qxf7# 1-0

[Event "from a position"]
[SetUp "1"]
[FEN "8/4P3/8/8/8/k7/8/K7 w - - 0 1"]
[Result "*"]

1. e8=Q ; a comment
Kb3 2. Qe4 *

[Event "another"]
[Variant "Chess960"]

1. e4 e5 1/2-1/2

[White "c"]

1. d4 d5 2. c4 dxc4 3. e3 b5 4. a4 c6 5. axb5 cxb5 6. Qf3 O-O-O 0-1
"""
TRANSCRIPTS = b"""WhiteElo,BlackElo,Result,transcript
1500,1600,1-0,;1.e4 e5 2.Nf3 Nc6 3.Bb5 a6
1200,?,0-1,"1. f3 e5 2. g4 Qh4# 0-1"
,,1/2-1/2,;1.d4 d5 2.c4
"""
BLOCKS = b"transcript\n" + b"".join(b";1.e4 e5 2.Nf3 Nc6 3.Bb5 a6 4.Ba4 Nf6 5.O-O Be7 6.Re1 b5\n" for _ in range(3))
EVAL = (
    b"game_id,transcript,result,player_one,player_two,player_one_time,player_two_time,player_one_score,player_two_score,"
    b"player_one_illegal_moves,player_two_illegal_moves,player_one_legal_moves,player_two_legal_moves,"
    b"player_one_resignation,player_two_resignation,player_one_failed_to_find_legal_move,"
    b"player_two_failed_to_find_legal_move,game_title,number_of_moves,time_taken,total_moves,illegal_moves\n"
    b"1,1. e4 e5 2. Nf3 Nc6,1-0,gpt-3.5-turbo-instruct,Stockfish 3,10.5,0.2,1,0,0,0,2,2,False,False,False,False,"
    b"gpt vs. Stockfish 3,2,10.9,4,0\n"
    b"2,1. f3 e5 2. g4 Qh4#,0-1,gpt-3.5-turbo-instruct,Stockfish 3,9,0.1,0,1,1,0,2,2,False,False,False,False,"
    b"gpt vs. Stockfish 3,2,9.9,4,1\n"
)
FENS = b"""fen,best,played,cp,mate,game,ply
rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1,e7e5,c7c5,-30,,1,1
8/4P3/8/8/8/k7/8/K7 w - - 0 1,e7e8q,Ka2,,5,2,80
"""
PUZZLES = b"""PuzzleId,FEN,Moves,Rating,Themes
00008,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1799,crushing short
"""
TSV = b"""eco\tname\tpgn
A00\tAmar Opening\t1. Nh3
C20\tKing's Pawn Game\t1. e4 e5 2. Qh5
"""
EPD = b"""rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - bm e5; id "one";
8/4P3/8/8/8/k7/8/K7 w - - 0 1
"""


def games_seeds(world: World) -> list[bytes]:
    import bz2
    import gzip

    import zstandard

    packed = [gzip.compress(PGN, mtime=0), bz2.compress(PGN), zstandard.compress(PGN), zstandard.compress(TRANSCRIPTS)]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("games.csv", TRANSCRIPTS)
    return [PGN, TRANSCRIPTS, BLOCKS, EVAL, *packed, archive.getvalue()]


@target("text csv bytes", games_seeds, MOVE_WORDS + " [FEN [Variant [Result transcript ;1.")
def games(world: World, data: bytes) -> None:
    """PGN and transcripts in every packing, into a dataset, by both readers; then as third-party results."""
    from chessreg.entities.adding import has_positions
    from chessreg.games.datasets import build

    path = world.file("games", data)
    if not has_positions([path]):
        for number, reader in enumerate(("rust", "python")):
            build.build_dataset([path], world.folder / f"made{number}", reader_name=reader, salvage=bool(number))


@target("text csv", lambda world: [EVAL, PGN, *members("/results")], MOVE_WORDS + " Stockfish True nan")
def results(world: World, data: bytes) -> None:
    """Third-party results: chess_gpt_eval's CSV, a tournament's PGN, a grid search."""
    from chessreg.games import foreign

    path = world.file("results.csv", data)
    found = foreign.find_format(path)
    if found.holds == "games":
        foreign.read_games(path, found.name).report()
    else:
        foreign.grid.read_grid_search(foreign.read_source_text(path))


def positions_seeds(world: World) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    made = []
    for text in (FENS, PUZZLES):
        buffer = io.BytesIO()
        pq.write_table(pa.csv.read_csv(io.BytesIO(text)), buffer)
        made.append(buffer.getvalue())
    return [FENS, PUZZLES, b"\n".join(line.split(b",")[0] + b",e7e5,1500" for line in FENS.splitlines()[1:]), *made]


@target("text csv bytes", positions_seeds, "fen moves rating cp mate e2e4 KQkq - w b 8/8 k K ep e3 bestmove PuzzleId")
def positions(world: World, data: bytes) -> None:
    """CSV and Parquet of positions, into a dataset."""
    from chessreg.games.datasets import positions as module

    path = world.file("positions", data)
    if module.open_positions(path) is not None:
        module.build_position_dataset([path], world.folder / "made")


def bag_seeds(world: World) -> list[bytes]:
    import struct

    import zstandard

    from chessreg.games.datasets.bags import encode_record

    def bag(records: list[bytes]) -> bytes:
        return b"".join(records) + struct.pack("<2q", len(records[0]), sum(map(len, records)))

    fens = [line.split(b",")[0].decode() for line in FENS.splitlines()[1:]]
    plain = [
        [encode_record(fen, move, value) for fen in fens]
        for move, value in (("e7e5", None), (None, 0.5), ("e7e8q", 0.25), ("e7e8q", None))
    ]
    return [*map(bag, plain), bag([zstandard.compress(one) for one in plain[0]])]


@target("bytes", bag_seeds, "e2e4 KQkq - w b 8/8 k K e3 q")
def bag(world: World, data: bytes) -> None:
    """Bags of ChessBench into a dataset; an added bag is exported and added again."""
    from chessreg.games.datasets import bags
    from chessreg.games.datasets import positions as module

    for suffix in bags.SUFFIXES:
        path = world.file(f"x{suffix}", data)
        with contextlib.suppress(*expected()):
            records = list(bags.Bag(path))
            again = world.folder / f"again{suffix}"
            bags.write_bag(again, records)
            assert list(bags.Bag(again)) == records
            module.build_position_dataset([path], world.folder / f"made{suffix}")


@target("text csv bytes", lambda world: [TSV, EPD, PGN, EPD.splitlines()[0], TSV.replace(b"\t", b",")], MOVE_WORDS)
def book(world: World, data: bytes) -> None:
    """An opening book: PGN, TSV, CSV, EPD."""
    from chessreg.games.boards.openings import Book

    for suffix in ("pgn", "tsv", "csv", "epd"):
        with contextlib.suppress(*expected()):
            Book.read(world.file(f"book.{suffix}", data)).moves(0)


MOVES = [
    b"", b"e4 e5 Nf3", b"1. e4 e5 2.g1f3", b"rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1",
    b"rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq c6 0 2", b"standard", b"random:8",
    b"random-2024:5", b"book:x:3",
    b"rnbqkbnr/ppp1pppp/8/3p4/3P4/8/PPP1PPPP/RNBQKBNR w KQkq -", b"8/4P3/8/8/8/k7/8/K7 w - - 0 1",
]  # fmt: skip


@target("text", lambda world: MOVES, MOVE_WORDS + " KQkq w b 8/8 random: book: 0")
def typed(world: World, data: bytes) -> None:
    """A position as it is typed for the lab, a board or an opening."""
    from chessreg.games.boards.openings import make_openings, parse_opening
    from chessreg.lab.question import LabPosition

    text = words_of(data)[0] if data else ""
    for read in (
        lambda text: LabPosition.from_settings(checkpoint="x", moves=text),
        lambda text: make_openings(parse_opening(text), 0, range(2)),
    ):
        with contextlib.suppress(*expected()):
            read(text)


# -- weights ----------------------------------------------------------------------------------------------------------


def saved(content: Any, old: bool = False) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not old)
    return buffer.getvalue()


def torch_seeds(world: World) -> list[bytes]:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    d, v, t = 4, 32, 8
    block = {"attn.c_attn": (3 * d, d), "attn.c_proj": (d, d), "mlp.c_fc": (4 * d, d), "mlp.c_proj": (d, 4 * d)}
    weights = {"transformer.wte.weight": torch.randn(v, d), "transformer.wpe.weight": torch.randn(t, d)}
    weights |= {f"transformer.h.0.{name}.weight": torch.randn(shape) for name, shape in block.items()}
    weights |= {f"transformer.{name}.weight": torch.ones(d) for name in ("h.0.ln_1", "h.0.ln_2", "ln_f")}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    shape = {"n_layer": 1, "n_head": 2, "n_embd": d, "block_size": t, "bias": False, "vocab_size": v, "dropout": 0.0}
    nanogpt = {"model": weights, "model_args": shape, "iter_num": 7, "best_val_loss": torch.tensor(1.5), "config": {}}
    lens = {"embed.W_E": torch.randn(v, d), "pos_embed.W_pos": torch.randn(t, d)}
    for name in "QKV":
        lens |= {f"blocks.0.attn.W_{name}": torch.randn(2, d, 2), f"blocks.0.attn.b_{name}": torch.zeros(2, 2)}
    lens |= {"blocks.0.attn.W_O": torch.randn(2, 2, d), "blocks.0.attn.b_O": torch.zeros(d)}
    lens |= {"blocks.0.mlp.W_in": torch.randn(d, 4 * d), "blocks.0.mlp.b_in": torch.zeros(4 * d)}
    lens |= {"blocks.0.mlp.W_out": torch.randn(4 * d, d), "blocks.0.mlp.b_out": torch.zeros(d)}
    lens |= {"unembed.W_U": torch.randn(d, v), "unembed.b_U": torch.zeros(v)}
    return [saved(nanogpt), saved(lens), saved({"model": weights}, old=True)]


@target(
    "zip zip bytes", torch_seeds, "model model_args torch FloatStorage _rebuild_tensor_v2 collections OrderedDict cpu"
)
def torch_checkpoint(world: World, data: bytes) -> None:
    """A nanoGPT or TransformerLens file, imported."""
    from chessreg.models.importers import convert_checkpoint

    convert_checkpoint(world.file("ckpt.pt", data), world.folder / "out")


TOKEN_FILES = HERE.parents[1] / "gpu" / "inputs"


@target("zip bytes", lambda world: [path.read_bytes() for path in sorted(TOKEN_FILES.iterdir())], "descr shape |u1 <i4")
def token_file(world: World, data: bytes) -> None:
    """Games as tokens, to train on elsewhere."""
    from chessreg.models.token_file import TokenFile

    TokenFile.read(world.file("games.npz", data)).positions(64)


def directions_seeds(world: World) -> list[bytes]:
    import torch

    torch.manual_seed(0)
    high, low = torch.randn(4), torch.randn(4)
    logged = {"final_loss": torch.tensor(0.7), "iters": 50, "epochs": 4, "acc": torch.tensor(0.9), "layer": 3}
    logged |= {
        "config_name": "chess_piece_probe",
        "n_layers": 8,
        "model_name": "tf_lens_lichess_8layers",
        "pos_start": 5,
    }
    vector = {"difference_vector": high - low, "average_high_elo_activation": high, "average_low_elo_activation": low}
    probe = torch.randn(1, 4, 8, 8, 13)
    made = [{"linear_probe": probe, **logged}, {"linear_probe": torch.randn(1, 4, 1, 1, 2), **logged}, vector, probe]
    return [*(saved(one) for one in made), saved(made[0], old=True), *members("/vector-file")]


@target(
    "zip zip bytes", directions_seeds, "linear_probe difference_vector layer model_name config_name n_layers acc iters"
)
def directions(world: World, data: bytes) -> None:
    """A saved probe or activation vector."""
    from chessreg.models.importers.directions import read_karvonen_probe, read_karvonen_vector

    path = world.file("tf_lens_lichess_8layers_ckpt_no_optimizer_chess_piece_probe_layer_5.pth", data)
    for read in (read_karvonen_probe, read_karvonen_vector):
        with contextlib.suppress(*expected()):
            read(path)


def folder_seeds(world: World) -> list[bytes]:
    """config.json and model.safetensors of small models, one after the other, separated by a special line."""
    import torch

    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    torch.set_num_threads(1)
    out = world.root / "small"
    model = make_random_gpt2(GPT2Config(n_layer=1, n_head=2, n_embd=4, block_size=8, vocab_size=32), seed=0)
    save_checkpoint(model, out, CheckpointInfo.from_network(model, "pgn-char-32"))
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    gpt2 = [files["config.json"], files["model.safetensors"]]
    return [APART.join([*gpt2, files["chessreg.json"]]), APART.join(gpt2)]


@target(
    "text parts parts parts",
    folder_seeds,
    "model_type gpt2 llama n_layer n_head vocab_size architectures F32 data_offsets",
)
def folder_checkpoint(world: World, data: bytes) -> None:
    """A Hugging Face folder, imported; with chessreg.json one of ours, loaded."""
    from chessreg.models.checkpoint import load_model
    from chessreg.models.importers import convert_checkpoint

    source = world.folder / "source"
    source.mkdir()
    for name, content in zip(("config.json", "model.safetensors", "chessreg.json"), data.split(APART), strict=False):
        (source / name).write_bytes(content)
    with contextlib.suppress(*expected()):
        convert_checkpoint(source, world.folder / "out")
    if (source / "chessreg.json").exists():
        load_model(source)


@target(
    "safetensors",
    lambda world: members("probe.safetensors", 1000) + members("vector.safetensors"),
    "weight F32 shape dtype",
)
def fitted(world: World, data: bytes) -> None:
    """The file of a probe or vector that somebody else's chessreg published."""
    from chessreg.registry.names import list_noun_tables
    from chessreg.runs.fitted import load_direction, load_probe

    inputs = world.session.inputs
    for noun, name, load in (("probe", "reference-board", load_probe), ("vector", "skill", load_direction)):
        reference = inputs.reference(noun, name)
        rows = {row.layer: row for row in inputs.rows(list_noun_tables()[noun], inputs.run(reference))}
        path = world.session.store.path(rows[1].artifact) / f"{noun}.safetensors"
        before = path.read_bytes()
        path.write_bytes(data)
        try:
            with contextlib.suppress(*expected()):
                load(inputs, reference, 1)
        finally:
            path.write_bytes(before)


# -- contents of a store or another registry
# ----------------------------------------------------------------------------


@target("json json text", lambda world: members(".artifact.json"), "kind files sha256 ../x")
def manifest(world: World, data: bytes) -> None:
    """The manifest of an artifact in another store, with a correct digest for its files."""
    from store import artifacts

    digest = "0" * 64
    with contextlib.suppress(Exception):
        digest = artifacts._digest_entries([(str(n), int(s), str(d)) for n, s, d in json.loads(data)["files"]])
    artifacts.parse_manifest(data, digest)


@target(
    "json json text", lambda world: [d for d in members("zarr.json") if b"d_model" in d], "chunks digest rows d_model"
)
def array_metadata(world: World, data: bytes) -> None:
    """The metadata of a group of activations in another store: where it is copied from, and where it is opened."""
    from store.array_format import group_digest, list_group_files
    from store.arrays import ActivationArray

    group = next(path for path in sorted(world.demo.glob("store/arrays/*")) if path.is_dir())
    shutil.copytree(group, world.folder / group.name)
    world.file(f"{group.name}/zarr.json", data)
    digest = None
    with contextlib.suppress(Exception):
        digest = group_digest(json.loads(data)["attributes"])
    for read in (
        lambda: list_group_files(data, digest),
        lambda: ActivationArray.open(world.folder / group.name).verify(),
    ):
        with contextlib.suppress(*expected()):
            read()


def fragment_seeds(world: World) -> list[bytes]:
    from store import Store
    from store.fragments import FragmentWriter

    run, attempt = "0" * 31 + "1", "0" * 31 + "2"
    store = Store.create(world.root / "seeds")
    writer = FragmentWriter(store, run, attempt)
    for unit in range(3):
        writer.add(
            "score", {"run_id": run, "unit": unit, "split": "x", "item": unit, "n": 1, "correct": 0.5, "raw": b"ab"}
        )
        writer.add("unit_range", {"run_id": run, "attempt_id": attempt, "start": unit, "stop": unit + 1})
    writer.close()
    made = [path.read_bytes() for path in store.incoming.glob("*")]
    world.__dict__["fragment_name"] = next(store.incoming.glob("*")).name
    return made + members(".jsonl.zst")


@target(
    "fragment fragment fragment bytes",
    fragment_seeds,
    "run_id attempt_id unit score trial artifact check_in t row $bytes",
)
def fragment(world: World, data: bytes) -> None:
    """A fragment of result rows, ingested."""
    from chessreg.runs.ingest import ingest_fragments

    session = world.session
    header = {}
    with contextlib.suppress(Exception):
        import zstandard

        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 20)
        header = json.loads(text.split(b"\n", 1)[0])
    run = header.get("run") if isinstance(header, dict) else None
    run = run if isinstance(run, str) and run.isalnum() and run.isascii() and len(run) < 64 else "0" * 31 + "1"
    name = f"0193b3f0-0000-7000-8000-000000000000.{run}.jsonl.zst"
    (session.store.incoming / name).write_bytes(data)
    try:
        ingest_fragments(session.database, session.store)
    finally:
        for path in (*session.store.incoming.iterdir(), *session.store.quarantine.iterdir()):
            path.unlink(missing_ok=True)


# -- typed input ------------------------------------------------------------------------------------------------------


def spec_seeds(world: World) -> list[bytes]:
    from sqlalchemy import select

    from chessreg.registry import tables

    with world.session.database.read() as session:
        rows = session.scalars(select(tables.Run).order_by(tables.Run.created_at)).all()
        return list({row.kind: json.dumps({"kind": row.kind, **row.spec}).encode() for row in rows}.values())


@target(
    "json json json text",
    spec_seeds,
    "checkpoint cache dataset layers scale seed probe vector max_sites first_ply version *",
)
def spec(world: World, data: bytes) -> None:
    """A stored spec, or the settings of a job file: built, resolved and planned."""
    from chessreg.runs.kind import find_kind
    from chessreg.runs.resolve import resolve_spec
    from chessreg.runs.spec import build_settings, flatten_settings

    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return  # the registry's own JSON, a job file's TOML or the command line were read before
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str) or ".py" in values["kind"]:
        return
    found = find_kind(values.pop("kind"))
    made = build_settings(found.spec, values)
    flatten_settings(made.model_dump())
    resolved = resolve_spec(found, made, world.session.inputs)
    found.estimate(resolved.spec, world.session.inputs)


JOBS = b"""on = "local"
priority = 1
[[job]]
kind = "cache"
checkpoint = "reference"
dataset = "sample:fit"
name = "fit"
shards = 2
[[job]]
kind = "probe"
cache = "fit"
[job.grid]
epochs = [1, 2]
"""
PROFILE = b"""[default]
partition = "a100"
gres = "gpu:1"
time = "08:00:00"
setup = ["module load cuda"]
options = ["--mail-type=END"]
cpus = 4
"""


@target(
    "text",
    lambda world: [JOBS, PROFILE, b'kind = "cache"\n[[cells]]\nlast = 3\n'],
    "kind [[job]] [grid] [[cells]] = true shards",
)
def settings_file(world: World, data: bytes) -> None:
    """A job file and profiles of a batch system."""
    from chessreg.cli.launch import read_file_orders
    from chessreg.scheduling.executors import slurm_script

    path = world.file("job.toml", data)
    world.file(slurm_script.PROFILE_FILE, data)
    if b".py" not in data:
        with contextlib.suppress(*expected()):
            read_file_orders(path, {})
    with contextlib.suppress(*expected()):
        slurm_script.find_profile("default", world.folder)


TEMPLATE = b"The position is {FEN}, the legal moves are {LM}. The best move is {BM}"


def prompt_seeds(world: World) -> list[bytes]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted({chr(c) for c in range(32, 127)})
    vocabulary = {word: n for n, word in enumerate(["<s>", "</s>", "<unk>", *alphabet])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(["<s>", "</s>"])
    told = b'{"eos_token": "</s>", "bos_token": "<s>"}'
    return [
        APART.join([TEMPLATE, made.to_str().encode(), told]),
        APART.join([b"{FEN} {BM}", made.to_str().encode(), told]),
    ]


@target(
    "text parts", prompt_seeds, "{FEN} {LM} {BM} {} {{ model vocab merges type WordLevel BPE added_tokens normalizer"
)
def prompt(world: World, data: bytes) -> None:
    """A prompt template and the tokenizer of a model, and their encoding of a position."""
    import chess

    from chessreg.encodings.prompts import make_prompt_encoding

    parts = data.split(APART)
    for name, content in zip(("tokenizer.json", "tokenizer_config.json", "config.json"), parts[1:], strict=False):
        world.file(name, content)
    made = make_prompt_encoding(world.folder, template=str(world.file("template.txt", parts[0])))
    board = chess.Board()
    made.answer_text(made.prompt(board))
    made.answers(board)


SQL = [
    b"select * from runs", b"select kind, count(*) as n from runs group by kind order by n desc limit 3",
    b"from games select avg(score) where color = 'white'",
    b"with a as (select 1 as x) select * from a union all values (2)",
    b"describe runs", b"show tables", b"summarize scores", b"color = 'white' and scale > 0.5",
    b"select json_extract(spec, '$.seed'), strftime(created_at, '%Y') from runs where name like '%a%'",
    b"select list_transform([1,2], x -> x + 1), {'a': 1}.a, $$x$$, 'a'::varchar, interval 1 day",
]  # fmt: skip


SQL_WORDS = """
select from where ( ) ; -- /* */ 'x' " $1 ? copy attach pragma install load set read_csv('/etc/passwd') range(10)
generate_series getenv('HOME') glob('*') json_serialize_sql pivot unpivot qualify window recursive lateral
"""


@target("text", lambda world: SQL, SQL_WORDS)
def sql(world: World, data: bytes) -> None:
    """SQL of somebody else, and a condition of --where."""
    from chessreg.queries import run_query, run_sql

    text = words_of(data)[0] if data else ""
    for ask in (
        lambda: run_sql(world.session.database, text, timeout=1.0, memory="500MB"),
        lambda: run_query(world.session.database, "ratings", where=text, timeout=1.0),
    ):
        with contextlib.suppress(*expected()):
            ask()


def line_seeds(world: World) -> list[bytes]:
    lines = [
        "runs list|kind:probe|spec.seed:0|~rb|!archived", "runs list|--sort|-spec.seed|since:7d",
        "runs list|state:complete|elo",
        "runs list|--sort|metric.loss|id:ab12", "runs list|since:2026-01-01|before:1h|tag:x",
        "runs show|reference-board",
        "runs show|47e5b8", "probe show|reference-board", "vector show|skill|--layer|1", "cache show|reference-fit",
        "checkpoint show|reference", "dataset show|sample", "dataset show|ample", "game list|--run|plain",
        "game show|plain|0",
        "game show|plain|1", "board|plain:0|--ply|-1", "board|sample:3|--ply|2", "board|reference-board:0",
        "lineage|skill", "compare|reference-board|skill",
        "query|elo by intervention|--where|color = 'white'|--since|7d",
        "query|best probe layers|--run|reference-board|--rows|1|--format|json", "query|ratings|--checkpoint|reference",
        "jobs|x", "probe list|--run|reference-board", "engine list", "machines", "status", "compare|plain|skill|--json",
    ]  # fmt: skip
    return [line.replace("|", "\n").encode() for line in lines] + world.commands.examples()


@target(
    "command command command text",
    line_seeds,
    "reference-board plain sample skill :0 :fit /1 @host elo>1900 elo: since: 7d spec. metric. --json "
    "--ply -1 a b c d e f ! ~ latest",
)
def command_line(world: World, data: bytes) -> None:
    """Ids, names, filters, settings: arguments of commands that only read, and of plans of runs."""
    command, *rest = words_of(data)
    if not world.commands.allowed([command, *rest]):
        return
    plan = ["--dry-run"] if command.startswith("run ") else []
    from chessreg.cli.root import root

    place = ["--registry", str(world.demo / "registry.db"), "--store", str(world.demo / "store")]
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        root.main([*place, *command.split(), *rest, *plan], prog_name="chessreg", standalone_mode=False)


def words_of(data: bytes) -> list[str]:
    """The lines as a shell would hand them over: bytes that are not UTF-8 as surrogates, no zero bytes."""
    return [line.replace("\0", "") for line in data.decode("utf-8", "surrogateescape").split("\n")]


def expected() -> tuple[type[BaseException], ...]:
    """Errors that a parser may raise: those with a message of one line, and an exit status."""
    import click

    from chessreg.errors import ChessregError
    from store.errors import StoreError

    return ChessregError, StoreError, click.ClickException, click.exceptions.Exit, click.exceptions.Abort
