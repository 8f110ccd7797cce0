"""How fast a ladder is played: turns of the model a second against Junkin's way, and how much of it is work.

    python tests/benchmarks/bench_ladder.py [--checkpoint FILE_OR_FOLDER] [--threads 1] [--games 8]

A ladder of levels 0 to 10 at 1,000 nodes, both colors, in one arena, against his evaluation of a nanoGPT, reimplemented
from his code: one level and one game after the other from the start position; a helper Stockfish is started for every
level and color; before each move of the model the board is checked for a repetition, then up to five tries are written
at rising temperatures, each character a pass of the whole text with the logits of the last token and the 200 likeliest
kept; the opponent is configured before each of its moves, and the game's text is written to a file after every ply.
Handicapped levels cannot be seeded, so the games differ; the comparison is of the time for a turn of the model, because
the games of both methods have about the same number of turns at the same plies (column `plies`).

`ratio_by_cpu` compares our own CPU seconds per turn, without the engines', and depends least on other work on the
machine. `share_of_work` is the time of the model's passes alone, in full batches, and of the engines' searches over the
time of the ladder; `share_of_passes` is that of the passes alone.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import chess
import chess.engine
import numpy as np
import torch
from bench_play import NOISE, TRIES, RecordingPool, forward_bound, load, passes_timed, plain_move, warm_up

from chessreg.experiments.matches import MatchRules, PlayedGame
from chessreg.experiments.play.arena import Arena, ModelPlayer
from chessreg.games.boards.openings import Opening
from chessreg.games.engines.opponents import ENGINE_OPTIONS, find_stockfish, parse_ladder
from chessreg.games.engines.pool import count_free_cores
from chessreg.models.decoding.policies import make_policy
from chessreg.models.language_model import LanguageModel

RUNGS = parse_ladder(["stockfish:0-10@nodes=1000"])
MOVE_LIMIT = 40


class LadderPool(RecordingPool):
    """Keeps the answers of every rung."""

    def submit(self, game_id: Any, board: chess.Board, *, key: Any, spec: Any = None) -> Any:
        self.answers.append(super(RecordingPool, self).submit(game_id, board, key=key, spec=spec))
        return self.answers[-1]


def arena_ladder(model: LanguageModel, games: int) -> tuple[list[PlayedGame], float, float, float]:
    """The games, seconds and own CPU seconds of a ladder, and the seconds that each engine searched."""
    with LadderPool(RUNGS[-1]) as pool:
        warm_up(pool)
        arena = Arena(
            ModelPlayer(model, make_policy(f"retry:{TRIES}")),
            MatchRules(None, MOVE_LIMIT),
            pool,
            lambda unit: Opening(unit),
            noise=NOISE,
            batch_games=32,
            get_opponent=lambda unit: RUNGS[unit // games],
        )
        began = np.array([time.perf_counter(), time.process_time()])
        played = list(arena.play(range(games * len(RUNGS))))
        wall, cpu = np.array([time.perf_counter(), time.process_time()]) - began
        searched = sum(answer.result().seconds for answer in pool.answers) / pool.processes
    return played, float(wall), float(cpu), searched


def plain_ladder(model: LanguageModel, folder: Path) -> tuple[int, int, float, float]:
    """Turns, plies, seconds and own CPU seconds of one game a level as his code plays them, colors in turn."""
    turns = plies = 0
    began = np.array([time.perf_counter(), time.process_time()])
    for unit, rung in enumerate(RUNGS):
        color = unit % 2 == 0
        with (
            chess.engine.SimpleEngine.popen_uci(str(find_stockfish())) as engine,
            chess.engine.SimpleEngine.popen_uci(str(find_stockfish())) as helper,
        ):
            engine.configure(dict(ENGINE_OPTIONS))
            board, sans = chess.Board(), list[str]()
            while not board.is_game_over() and len(sans) < 2 * MOVE_LIMIT:
                if board.turn == color:
                    turns += 1
                    if board.is_repetition(2):
                        helper.analyse(board, chess.engine.Limit(depth=10), multipv=5)
                    move = plain_move(model, board, sans, unit)
                    if move is None:
                        break
                else:
                    engine.configure({"Skill Level": rung.skill})
                    move = engine.play(board, chess.engine.Limit(nodes=1000)).move
                assert move is not None
                sans.append(board.san_and_push(move))
                (folder / "game.txt").write_text(" ".join(sans))
            plies += len(sans)
    wall, cpu = np.array([time.perf_counter(), time.process_time()]) - began
    return turns, plies, float(wall), float(cpu)


def measured(model: LanguageModel, games: int) -> dict[str, float]:
    with passes_timed() as in_passes:
        played, wall, cpu, searched = arena_ladder(model, games)
    passes, _ = forward_bound(model, played)
    turns = sum(len(game.tries) for game in played)
    with tempfile.TemporaryDirectory() as folder:
        plain_turns, plain_plies, plain_wall, plain_cpu = plain_ladder(model, Path(folder))
    return {
        "games": len(played),
        "games_per_minute": round(60 * len(played) / wall, 1),
        "turns_per_second": round(turns / wall, 1),
        "plain_turns_per_second": round(plain_turns / plain_wall, 2),
        "plies": round(sum(game.ply for game in played) / len(played), 1),
        "plain_plies": round(plain_plies / len(RUNGS), 1),
        "ratio": round(turns / wall / (plain_turns / plain_wall), 1),
        "ratio_by_cpu": round(turns / cpu / (plain_turns / plain_cpu), 1),
        "share_of_work": round((passes + searched) / wall, 3),
        "share_of_passes": round(passes / wall, 3),
        "share_in_passes": round(sum(in_passes) / wall, 3),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=max(1, count_free_cores() - 1))
    parser.add_argument("--games", type=int, default=8, help="of each rung")
    options = parser.parse_args()
    with ExitStack() as stack:
        model = load(options.checkpoint, stack)
        if model is None:
            print("skipped: no model is bundled yet, name one with --checkpoint")
            return
        torch.set_num_threads(options.threads)
        target = "ratio >= 10, share_of_work >= 0.6"
        print(
            json.dumps(
                {"at": "1,000 nodes", "threads": options.threads, "target": target, **measured(model, options.games)}
            )
        )


if __name__ == "__main__":
    main()
