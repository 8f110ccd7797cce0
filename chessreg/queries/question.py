"""A catalogue query with its scope, as statements for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from chessreg.errors import BadInputError
from chessreg.queries import gate
from chessreg.queries.catalogue import Entry
from chessreg.queries.engine import QueryEngine
from chessreg.queries.scope import Filters, Scope

SCORINGS = ("paper", "author-2024")


class CatalogueQuestion:
    """A catalogue entry with its scope. Composes the statements for DuckDB."""

    def __init__(self, engine: QueryEngine, entry: Entry, scope: Scope, where: Filters, scoring: str) -> None:
        if scoring not in SCORINGS:
            raise BadInputError(f"scoring {scoring!r} does not exist", f"one of {', '.join(SCORINGS)}")
        self.engine, self.entry, self.scope, self.filters = engine, entry, scope, where
        self.base_where = [where.base]
        self.result_where = ""
        self.parameters: Mapping[str, Any] = {"scoring": scoring, "filtered": scope.hides_runs}
        self.meta: dict[str, Any] = {"query": entry.title, "paper": entry.paper, "scope": scope.list_set_options()}
        if any("$scoring" in sql for sql in entry.statements.values()):
            self.meta["scoring"] = scoring

    @property
    def has_all_rows(self) -> bool:
        """Whether no condition filters the results behind the cells."""
        return self.base_where == ["true"]

    def build_statement(self, name: str, given_relations: Mapping[str, str] | None = None) -> str:
        """Return one of the entry's statements, as `compose_statement` does; one of its relations as a statement."""
        if name in self.entry.relations:
            return self.compose_statement(f"SELECT * FROM {name}", given_relations)
        return self.compose_statement(self.entry.statements[name], given_relations)

    def compose_statement(self, sql: str, given_relations: Mapping[str, str] | None = None) -> str:
        """Return a statement over the entry's relations, narrowed to the scope.

        The SELECTs of `given_relations` replace the relations of the same names, and relations that the statement does
        not need are left out.
        """
        sql = strip_comments(sql)
        relations = self.build_relations(None if given_relations is None else sql, given_relations or {})
        return f"{relations},\n{sql[5:]}" if sql.upper().startswith("WITH ") else f"{relations}\n{sql}"

    def build_relations(
        self, wanted_statement: str | None = None, given_relations: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """Return the WITH clause of the relations that `wanted_statement` needs (None: of all), each narrowed to the
        scope."""
        conditions = {"cells": [self.filters.cells], "base": list(self.base_where)}
        if "cells" not in self.entry.relations:
            conditions["base"].append(self.filters.cells)
        parts = {"scoped": f"SELECT * FROM runs WHERE {self.filters.runs}"}
        for relation, sql in self.entry.relations.items():
            condition = " AND ".join(conditions.get(relation, ["true"]))
            parts[relation] = given_relations.get(relation) or f"SELECT * FROM (\n{sql}\n) WHERE {condition}"
        if wanted_statement is not None:
            needed_names = set[str]()
            pending = [wanted_statement]
            while pending:
                words = set(re.findall(r"\w+", strip_comments(pending.pop())))
                pending += [parts[name] for name in parts if name in words - needed_names]
                needed_names |= words & parts.keys()
            parts = {name: sql for name, sql in parts.items() if name in needed_names}
        return f"WITH {', '.join(f'{name} AS ({sql})' for name, sql in parts.items())}"

    def apply_where(self, text: str) -> None:
        """Apply --where to the finished table or, if it names other columns, to the rows behind the table."""
        condition = gate.check_condition(self.engine.parser(), text)
        from chessreg.queries.summary import list_added_columns

        made_columns = "".join(
            f', NULL::DOUBLE AS "{column}"' for s in self.entry.statistics for column in list_added_columns(s)
        )
        table = f"SELECT *{made_columns} FROM (\n{self.build_statement('table')}\n)"
        wrong = self.engine.binds(f"SELECT * FROM ({table}) WHERE {condition}", self.parameters)
        if not wrong:
            self.result_where = condition
            return
        if self.engine.binds(f"{self.build_relations()}\nSELECT 1 FROM base WHERE {condition}", self.parameters):
            names = ", ".join(column.name for column in self.entry.columns)
            raise BadInputError(f"--where {text!r}: {wrong}", f"the columns are {names}")
        self.base_where.append(condition)


def strip_comments(sql: str) -> str:
    """Return SQL without its comment lines."""
    return "\n".join(line for line in sql.splitlines() if not line.startswith("--")).strip()
