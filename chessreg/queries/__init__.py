"""Queries: each table of a paper is one `.sql` file, answered by DuckDB over the tables that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chessreg.queries.ask import run_query, run_sql
    from chessreg.queries.result import QueryResult
    from chessreg.queries.scope import Scope

__all__ = ["QueryResult", "Scope", "run_query", "run_sql"]

PLACES = {
    "run_query": "chessreg.queries.ask",
    "run_sql": "chessreg.queries.ask",
    "QueryResult": "chessreg.queries.result",
    "Scope": "chessreg.queries.scope",
}


def __getattr__(name: str) -> Any:  # lazy, because `chessreg query --list` needs no names
    if name in PLACES:
        import importlib

        return getattr(importlib.import_module(PLACES[name]), name)
    raise AttributeError(name)
