"""How fast a dataset is added, against a python-chess reader that replays each game and against pgn-extract.

    python tests/benchmarks/bench_dataset_add.py ../shared/data/games/lichess-{lm,probe-train,probe-test}.pgn.zst

The baseline reads the first games of the first file with `chess.pgn`, replays every move and keeps tags and moves (no
SAN, which would double its time); its time is scaled by plies. Both run in this process, one after the other. If
pgn-extract is installed, the CPU seconds of `chessreg dataset add` and of `pgn-extract -Wuci` on the unpacked games are
compared, each as a new process.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chess.pgn

from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.sources import GameSource


def plain_way(text: str, games: int) -> tuple[float, int]:
    """Seconds and plies of a python-chess reader on the first games of a PGN."""
    stream = io.StringIO(text)
    rows = []
    plies = 0
    start = time.perf_counter()
    for _ in range(games):
        game = chess.pgn.read_game(stream)
        if game is None:
            break
        board = game.board()
        moves = []
        for move in game.mainline_moves():
            board.push(move)
            moves.append(move.uci())
        plies += len(moves)
        rows.append((dict(game.headers), moves, board.fen()))
    return time.perf_counter() - start, plies


def measure_cpu_seconds(*command: str | Path) -> float:
    """Return the CPU seconds of a process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare_with_pgn_extract(files: list[Path], processes: int) -> str:
    """Return a line with the CPU seconds of `dataset add` and of pgn-extract on the same unpacked games."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/games"))  # Debian's folder
    tool = shutil.which("pgn-extract", path=path)
    if tool is None:
        return "pgn-extract is not installed"
    with tempfile.TemporaryDirectory() as folder:
        games = Path(folder) / "games.pgn"
        with games.open("wb") as out:
            for file in files:
                out.writelines(GameSource(file).blocks())
        chessreg = [sys.executable, "-m", "chessreg", "--registry", Path(folder) / "registry.db"]
        subprocess.run([*chessreg, "init"], check=True, capture_output=True)
        ours = measure_cpu_seconds(*chessreg, "dataset", "add", games, "--processes", str(processes))
        theirs = measure_cpu_seconds(tool, "-Wuci", "--quiet", "-o", Path(folder) / "games.uci", games)
    return f"pgn-extract -Wuci: {theirs:.1f} CPU s, dataset add: {ours:.1f} CPU s, ratio {theirs / ours:.2f} (target 1)"


def default_files() -> list[Path]:
    """The 92,736 Lichess games next to the checkout if they exist, else the bundled sample."""
    here = Path(__file__).resolve().parents[2]
    shared = here.parent / "shared" / "data" / "games"
    found = [shared / f"lichess-{part}.pgn.zst" for part in ("lm", "probe-train", "probe-test")]
    return found if all(path.exists() for path in found) else [here / "chessreg" / "data" / "sample-games.pgn.zst"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=default_files())
    parser.add_argument("--baseline-games", type=int, default=1500)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--reader", default="auto", choices=["auto", "rust", "python"])
    parser.add_argument("--repeat", type=int, default=2, help="the best of this many counts")
    options = parser.parse_args()

    seconds = []
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            report = build_dataset(
                options.files, Path(folder) / "out", reader_name=options.reader, processes=options.processes
            )
            seconds.append(time.perf_counter() - start)
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB here
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    best = min(seconds)

    text = next(GameSource(options.files[0]).blocks()).decode()
    taken, plies = plain_way(text, options.baseline_games)
    plain = taken * report.plies / plies
    print(f"dataset add: {report.games:,} games, {report.plies:,} plies in {best:.1f} s")
    print(f"python-chess: {plies:,} plies in {taken:.1f} s, {plain:.0f} s for all")
    print(
        f"ratio: {plain / best:.1f}x (target 20x) · {best:.1f} s (target 12 s) · peak {peak:.2f} GiB (target 1.5 GiB)"
    )
    print(compare_with_pgn_extract(options.files, options.processes))
    sys.exit(0 if plain / best >= 20 and best <= 12 and peak < 1.5 else 1)


if __name__ == "__main__":
    main()
