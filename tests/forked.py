"""Processes of tests, forked from one that has imported what commands need and done nothing else."""

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([
    "chessreg.cli.root", "chessreg.session", "chessreg.models.language_model", "chessreg.kinds", "chessreg.queries.ask",
    "chessreg.scheduling.launch", "chessreg.experiments.cache", "chessreg.experiments.play", "duckdb", "pyarrow",
])  # fmt: skip
