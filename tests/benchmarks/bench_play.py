"""Matches: games a minute against one game at a time, and how busy slow engines are kept.

    python tests/benchmarks/bench_play.py [--checkpoint FILE_OR_FOLDER] [--threads 1] [--games 160]

1. At 1,000 nodes: the arena against the author's method, reimplemented from chess_gpt_eval: one game after the other; a
try is up to ten passes of the whole text through his nanoGPT, logits of the last token alone, the 200 likeliest kept
(of 32: all), until a space; the engine is configured before each of its moves, while the model waits. Where ours
differs: many games side by side, engines searching meanwhile,
   keys and values kept from move to move. Both use the same model object, dtype and threads, the policy retry:5, the
   same draws, and level 20, which forgets everything before each move and so plays the same moves every time: both ways
   must play the same moves. The author's method plays some turns of the arena's games, and the replies to them, in
   rounds whose texts are as long on average as those of all turns, because its time grows with their length. Its games
   per minute are its turns per minute over the arena's turns per game, and `ratios` are those of each round.
   `ratio_by_cpu` is that of our own CPU seconds per game, without the engines', and depends least on other work on the
   machine. `mean_text` are the mean characters of a turn's text, of the arena's turns and of the author's. His own code
   with this model's weights takes 197 to 208 ms of CPU for a try after 364 characters, the stand-in 192 to 203.
   `share_of_forward_bound` is the time of the model's passes alone, every token of these games and tries computed once,
   in full batches of 32 rows of one length and with a cache, over the time of the match; that length is the mean
   position of these games' characters. `share_in_passes` is the part of the match spent in passes as they were.
2. At 100,000 nodes, level 0: the time of the same searches done by the engines alone, on all cores, over the time of
   the match, the median of three rounds. Other work on the machine disturbs this; `share_by_cpu` is then the better
   figure: the share of the match in which an engine process had a search to do, times the engines' part of the CPU.

The model is the bundled one unless another is named; without either there is nothing to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import chess
import chess.engine
import numpy as np
import psutil
import torch

from chessreg.encodings import get_encoding
from chessreg.experiments.matches import MatchRules, PlayedGame
from chessreg.experiments.play.arena import Arena, ModelPlayer
from chessreg.games.boards.openings import Opening, make_openings, parse_opening
from chessreg.games.engines.opponents import ENGINE_OPTIONS, find_stockfish, parse_engine
from chessreg.games.engines.pool import EngineMove, EnginePool, count_free_cores
from chessreg.models.decoding.policies import get_author_temperature, make_policy
from chessreg.models.decoding.sampling import draw_tokens
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.language_model import LanguageModel
from chessreg.noise import uniform

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "checkpoints" / "lichess-8x192-char.pt"
TRIES = 5
PGN = get_encoding("pgn-char-32")
NOISE = (0, 0)
SOURCE = parse_opening("random:4")


def opening(number: int) -> Opening:
    return make_openings(SOURCE, 0, [number])[0]


class RecordingPool(EnginePool):
    """An engine pool that keeps the positions it is asked about."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.asked: list[tuple[Hashable, chess.Board, tuple[int | str, ...]]] = []
        self.answers: list[Future[EngineMove]] = []

    def submit(self, game_id: Hashable, board: chess.Board, *, key: tuple[int | str, ...]) -> Future[EngineMove]:
        self.asked.append((game_id, board.copy(), key))
        self.answers.append(super().submit(game_id, board, key=key))
        return self.answers[-1]


def arena_games(
    model: LanguageModel,
    pool: EnginePool,
    games: int,
    move_limit: int,
    on_slow: Callable[[bool], None],
    batch_games: int = 32,
) -> tuple[list[PlayedGame], float]:
    """Games by the arena, and the seconds that they took, engines started."""
    with pool:
        warm_up(pool)
        policy, rules = make_policy(f"retry:{TRIES}"), MatchRules(chess.WHITE, move_limit)
        settings: dict[str, Any] = {"noise": NOISE, "batch_games": batch_games, "engines_slow": on_slow}
        arena = Arena(ModelPlayer(model, policy), rules, pool, opening, **settings)
        began = time.perf_counter()
        played = list(arena.play(range(games)))
        return sorted(played, key=lambda game: game.unit), time.perf_counter() - began


def forward_bound(model: LanguageModel, played: list[PlayedGame], batch_games: int = 32) -> tuple[float, float]:
    """Seconds, and CPU seconds, of the model's passes alone for these games: for each turn one pass over its unread
    tokens (the opponent's text), then one for each character written, with all rows full."""
    turns = sum(len(game.tries) for game in played)
    own = [
        san
        for game in played
        for ply, san in enumerate(game.sans)
        if ply >= len(game.opening.moves) and (ply % 2 == 0) == game.color
    ]
    written = sum(len(san) + 1 for san in own) + sum(len(text) + 1 for game in played for *_, text in game.illegal)
    lengths = np.array([len(PGN.prompt(game.sans)) for game in played])
    mean_length = int((lengths**2).sum() / 2 / lengths.sum())
    replies = int(lengths.sum()) - sum(map(len, own)) - len(own)
    session = DecodingSession(model, batch_games)
    session.feed([[5] * mean_length] * batch_games)

    def timed(width: int, rounds: int) -> np.ndarray:
        for _ in range(2):
            session.feed([[5] * width] * batch_games)
        began = np.array([time.perf_counter(), time.process_time()])
        for _ in range(rounds):
            session.feed([[5] * width] * batch_games)
        spent = np.array([time.perf_counter(), time.process_time()]) - began
        session.rollback([width * (rounds + 2)] * batch_games)
        session.refresh()
        return spent / rounds

    width = max(1, round(replies / turns))
    wall, cpu = (turns * timed(width, 5) + (written - turns) * timed(1, 20)) / batch_games
    return float(wall), float(cpu)


@contextmanager
def passes_timed() -> Iterator[list[float]]:
    """The seconds of every pass of a decoding session within."""
    seconds: list[float] = []
    plain = DecodingSession.forward

    def timed(self: DecodingSession, *arguments: Any) -> Any:
        began = time.perf_counter()
        hidden = plain(self, *arguments)
        seconds.append(time.perf_counter() - began)
        return hidden

    DecodingSession.forward = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        DecodingSession.forward = plain  # type: ignore[method-assign]


def warm_up(pool: EnginePool) -> None:
    """Start every engine process before the clock runs."""
    for future in [EnginePool.submit(pool, "warm", chess.Board(), key=()) for _ in range(4 * pool.processes)]:
        future.result()


# -- the plain way ----------------------------------------------------------------------------------------------------


AUTHORS_TOKENS, AUTHORS_LIKELIEST = 10, 200
ROUNDS = 3


@torch.no_grad()
def plain_text(model: LanguageModel, prompt: list[int], key: tuple[int | str, ...], temperature: float) -> str:
    """A move's text, the whole context recomputed for every character."""
    written: list[int] = []
    for step in range(AUTHORS_TOKENS):
        hidden = model.network.hidden(torch.tensor([(prompt + written)[-model.block_size :]]))
        logits = model.network.unembed(hidden[:, -1:])[0, -1]
        least = torch.topk(logits, min(AUTHORS_LIKELIEST, len(logits))).values[-1]
        logits = torch.where(logits < least, -torch.inf, logits)
        logprobs = torch.log_softmax(logits.float(), -1)[None].numpy()
        token = int(draw_tokens(logprobs, np.array([temperature]), np.array([uniform(*key, step)]))[0])
        if token in PGN.stop_ids:
            break
        written.append(token)
    return PGN.decode(written)


def plain_move(model: LanguageModel, board: chess.Board, sans: list[str], unit: int) -> chess.Move | None:
    """The first legal move within the author's number of tries."""
    prompt = list(PGN.prompt(sans))
    for attempt in range(TRIES):
        key = ("play", *NOISE, unit, len(sans), attempt)
        move = PGN.parse(plain_text(model, prompt, key, get_author_temperature(attempt)), board)
        if move is not None:
            return move
    return None


def turns_of(played: list[PlayedGame]) -> list[tuple[int, PlayedGame, int]]:
    """(characters of its text, game, moves before it) of every turn of the model, shortest text first."""
    turns = []
    for game in played:
        given = len(game.opening.moves)
        for place in range(len(game.tries)):
            before = given + (given % 2 == game.color) + 2 * place
            turns.append((len(PGN.prompt(game.sans[:before])), game, before))
    return sorted(turns, key=lambda turn: (turn[0], turn[1].unit))


def plain_turn(model: LanguageModel, engine: chess.engine.SimpleEngine, game: PlayedGame, before: int) -> np.ndarray:
    """Seconds, and seconds of our CPU, of one turn and its reply as chess_gpt_eval plays them: moves of the game."""
    board, sans = chess.Board(), game.sans[:before]
    for san in sans:
        board.push_san(san)
    began = np.array([time.perf_counter(), time.process_time()])
    move = plain_move(model, board, sans, game.unit)
    made = [] if move is None else [board.san_and_push(move)]
    if made and len(game.sans) > before + 1:
        engine.configure({"Skill Level": 20})
        reply = engine.play(board, chess.engine.Limit(nodes=1000), game=object()).move
        assert reply is not None
        made.append(board.san_and_push(reply))
    spent = np.array([time.perf_counter(), time.process_time()]) - began
    assert made == game.sans[before : before + 2], f"game {game.unit}: the two ways must play the same"
    return spent


def against_plain(
    model: LanguageModel, games: int, plain_turns: int, on_slow: Callable[[bool], None]
) -> dict[str, Any]:
    """Games a minute at 1,000 nodes, both ways."""
    limit = 40
    cpu = time.process_time()
    with passes_timed() as in_passes:
        pool = EnginePool(parse_engine("stockfish:20@nodes=1000"))
        played, seconds = arena_games(model, pool, games, limit, on_slow)
    cpu = time.process_time() - cpu
    turns = turns_of(played)
    turns_per_game, per_round = len(turns) / games, max(1, plain_turns // ROUNDS)
    bound, bound_cpu = forward_bound(model, played)
    with chess.engine.SimpleEngine.popen_uci(str(find_stockfish())) as engine:
        engine.configure(dict(ENGINE_OPTIONS))
        plain_turn(model, engine, *turns[0][1:])  # costs that occur once
        each, lengths = [], []
        for number in range(ROUNDS):  # the middles of equal parts of the turns, one part for each turn of all rounds
            places = (np.arange(per_round) * ROUNDS + number + 0.5) / (per_round * ROUNDS)
            some = [turns[place] for place in (places * len(turns)).astype(int)]
            each.append(np.mean([plain_turn(model, engine, game, before) for _, game, before in some], axis=0))
            lengths += [length for length, *_ in some]
    wall, plain_cpu = np.mean(each, axis=0)
    ours, plain = 60 * games / seconds, 60 / wall / turns_per_game
    return {
        "arena_games_per_minute": round(ours, 1),
        "plain_games_per_minute": round(plain, 2),
        "turns_per_game": round(turns_per_game, 1),
        "mean_text": [round(float(np.mean(some))) for some in ([length for length, *_ in turns], lengths)],
        "ratio": round(ours / plain, 1),
        "ratios": sorted(round(float(one[0]) * turns_per_game * games / seconds, 1) for one in each),
        "ratio_by_cpu": round(float(plain_cpu) * turns_per_game * games / cpu, 1),
        "load": round(os.getloadavg()[0], 1),
        "share_of_forward_bound": round(bound / seconds, 3),
        "share_by_cpu": round(bound_cpu / cpu, 3),  # of our own CPU time, which other work on the machine affects less
        "share_in_passes": round(sum(in_passes) / seconds, 3),
    }


def against_engines(model: LanguageModel, games: int, on_slow: Callable[[bool], None]) -> dict[str, float]:
    """How much of a match at 100,000 nodes the engines alone would take: the median of three rounds."""
    opponent = "stockfish:0@nodes=100000"
    rounds = []
    for _ in range(3):
        cpu = time.process_time()
        pool = RecordingPool(parse_engine(opponent))
        played, seconds = arena_games(model, pool, games, 6, on_slow)
        own_cpu = time.process_time() - cpu
        searching = sum(answer.result().seconds for answer in pool.answers)
        with EnginePool(parse_engine(opponent)) as alone:
            warm_up(alone)
            before = engine_cpu(alone)
            began = time.perf_counter()
            for future in [alone.submit(g, b, key=k) for g, b, k in pool.asked]:
                future.result()
            bound_seconds = time.perf_counter() - began
            searched_cpu = engine_cpu(alone) - before
        busy = searching / seconds / pool.processes
        rounds.append(
            {
                "games_per_minute": round(60 * len(played) / seconds, 1),
                "engine_only_games_per_minute": round(60 * len(played) / bound_seconds, 1),
                "engines_busy": round(busy, 3),
                "engine_cpu_seconds_per_move": round(searched_cpu / len(pool.asked), 4),
                "own_cpu_seconds_per_move": round(own_cpu / len(pool.asked), 4),
                "share_by_cpu": round(busy * searched_cpu / (searched_cpu + own_cpu), 3),
                "share_of_bound": round(bound_seconds / seconds, 3),
            }
        )
    return sorted(rounds, key=lambda one: one["share_of_bound"])[1]


def engine_cpu(pool: EnginePool) -> float:
    """CPU seconds that the engine processes have used."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pool.pids)


def load(given: Path | None, stack: ExitStack) -> LanguageModel | None:
    """The named checkpoint, else the bundled one, else the one next to the checkout."""
    from chessreg.models.importers import convert_checkpoint

    bundled = stack.enter_context(as_file(files("chessreg") / "data" / "reference-model"))
    source = given or (bundled if bundled.is_dir() else SHARED)
    if not source.exists():
        return None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "checkpoint"
    convert_checkpoint(source, folder)
    return LanguageModel.load(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=max(1, count_free_cores() - 1))  # as a match takes them
    parser.add_argument("--games", type=int, default=160)
    parser.add_argument("--plain-turns", type=int, default=90)
    options = parser.parse_args()
    with ExitStack() as stack:
        model = load(options.checkpoint, stack)
        if model is None:
            print("skipped: no model is bundled yet, name one with --checkpoint")
            return
        torch.set_num_threads(options.threads)
        result = against_plain(model, options.games, options.plain_turns, lambda slow: None)
        print(
            json.dumps(
                {"at": "1,000 nodes", "threads": options.threads, "target": "ratio >= 10, share >= 0.6", **result}
            ),
            flush=True,
        )
        share: Callable[[bool], None] = lambda slow: torch.set_num_threads(1 if slow else options.threads)
        busy = against_engines(model, max(1, options.games // 6), share)
        print(
            json.dumps({"at": "100,000 nodes", "cores": count_free_cores(), "target": "share_of_bound >= 0.85", **busy})
        )


if __name__ == "__main__":
    main()
