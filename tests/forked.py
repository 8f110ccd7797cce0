"""Processes of tests, forked from one that has imported what commands need and done nothing else."""

import gc
import multiprocessing

gc.set_threshold(100_000, 20, 20)  # imports make many objects and no garbage; as the command has it
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([
    "tests.forked",
    "chessreg.cli.root", "chessreg.session", "chessreg.models.language_model", "chessreg.kinds", "chessreg.queries.ask",
    "chessreg.scheduling.launch", "chessreg.experiments.cache", "chessreg.experiments.play", "duckdb", "pyarrow",
])  # fmt: skip
