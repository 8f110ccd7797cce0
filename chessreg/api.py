"""The object that `chessreg.open()` returns. Each method does the same as the command with its name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chessreg.errors import BadInputError
from chessreg.queries.result import QueryResult
from chessreg.registry.database import Database
from chessreg.registry.place import resolve_store_path
from chessreg.rows import Rows
from chessreg.session import Session, open_session

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.encodings import Encoding
    from chessreg.entities.merge import MergeReport
    from chessreg.queries.compare import RunComparison
    from chessreg.registry.lineage import Branch


class Table(QueryResult):
    """A query's answer, shown as a table in a terminal and in a notebook."""

    def to_polars(self) -> Any:
        """Return a polars data frame; ids are 32 hex digits. Raises ImportError without polars."""
        import polars

        return polars.from_arrow(self.table)

    def __repr__(self) -> str:
        from chessreg.queries.render import format_table

        return format_table(self, 120).rstrip("\n") if len(self) else "\n".join(["no rows", *self.notes])

    def _repr_html_(self) -> str:
        from chessreg.queries.render import format_html

        return format_html(self)


def make_table(result: QueryResult) -> Table:
    """Return a query's result as a Table, with its data frames and its HTML."""
    return Table(**{field.name: getattr(result, field.name) for field in fields(result)})


class Registry(Session):
    """An open registry with its store: runs, tables, plots, models and games. Close it, or use it in a `with` block."""

    # -- tables, plots and comparisons ----------------------------------------------------------------------------

    def query(self, name: str, **scope: Any) -> Table:
        """Return the table of a catalogue query: `reg.query("win rate").to_pandas()`.

        `name` is its title, an alias, or words that describe it. `scope` are the options of `chessreg query` as
        keywords: checkpoint, run, tag, machine, since, where, partial, scoring and sort. Raises NotFoundError for an
        unknown query, and BadInputError if `where` is not a condition or `sort` not a column.
        """
        from chessreg.queries import run_query

        return make_table(run_query(self.database, name, **scope))

    def rows(self, name: str, row: int, **scope: Any) -> Table:
        """Return the games, trials or scores from which row `row` of a catalogue query is computed.

        Rows are counted from 1. `scope` must be that of the query. Raises BadInputError for a row that does not exist.
        """
        from chessreg.queries.ask import query_rows_behind

        return make_table(query_rows_behind(self.database, name, row, **scope))

    def published(self, name: str, **scope: Any) -> Table:
        """Return the papers' numbers for a catalogue query, each with our number and the settings that differ.

        Raises NotFoundError if no paper has numbers for this query.
        """
        from chessreg.queries.published import compare_with_published

        return make_table(compare_with_published(self.database, self.query(name, **scope)))

    def sql(self, select: str, *, timeout: float | None = None) -> Table:
        """Return the answer to one SELECT over the registry's tables and views (`timeout` in seconds, None: 300).

        Raises BadInputError unless `select` is a single statement that only reads.
        """
        from chessreg.queries import run_sql

        return make_table(run_sql(self.database, select, timeout=timeout))

    def plot(self, name: str, *, scoring: str = "paper", **scope: Any) -> Figure:
        """Return a catalogue plot as a matplotlib figure with 95 % intervals.

        `name` is its title, an alias, or words that describe it. Raises NotFoundError for an unknown plot, and
        BadInputError if it has no point.
        """
        from chessreg.queries import plot as plots
        from chessreg.queries.ask import list_trusted_kind_files, query_plot_rows
        from chessreg.queries.catalogue import find_plot
        from chessreg.queries.scope import Scope

        entry, plot = find_plot(name, list_trusted_kind_files(self.database))
        return plots.draw_figure(
            query_plot_rows(self.database, entry, plot, Scope.from_options(scope), scoring=scoring), plot
        )

    def compare(self, *runs: str) -> RunComparison:
        """Return the differences between runs: settings, code, machines, and each metric with its interval.

        Metrics are compared with the pinned run, or else with the first. A single run is compared by its attempts.
        Raises NotFoundError for an unknown run, and BadInputError if the runs cannot be compared.
        """
        from chessreg.queries.compare import compare_runs

        return compare_runs(self.ingest_waiting(), list(runs))

    def lineage(self, reference: str) -> dict[str, Branch]:
        """Return two trees of a run, dataset or checkpoint: its inputs ("up"), and the results that depend on it
        ("down").

        Raises NotFoundError for an unknown reference.
        """
        from chessreg.entities.lineage_tree import build_described_tree
        from chessreg.registry.lineage import find_node

        with self._read() as sql:
            node = find_node(sql, reference)
            return {way: build_described_tree(sql, node, up=way == "up") for way in ("up", "down")}

    # -- lists ----------------------------------------------------------------------------------------------------

    def ingest_waiting(self) -> Database:
        """Ingest the fragments that wait in the store and mark lost attempts, and return the database.

        A read-only registry is returned unchanged. Issues a warning if the registry cannot be written.
        """
        if not self.database.read_only and (reason := self.bring_up_to_date()):
            warnings.warn(f"not up to date: {reason}", stacklevel=3)
        return self.database

    @contextmanager
    def _read(self) -> Iterator[SqlSession]:
        with self.ingest_waiting().read() as sql:
            yield sql

    def runs(self, words: str = "", *, kind: str | None = None, archived: bool = False, sort: str = "") -> Rows:
        """Return the runs, the newest last: `reg.runs("kind:probe since:7d !stale", sort="-spec.epochs")`.

        `words` filter them, as in `chessreg runs list`; a run must match all of them. `sort` is a field, `-` for
        descending order. `archived` includes archived runs. Raises BadInputError for an unknown field.
        """
        from chessreg.entities import load_entity
        from chessreg.registry.run_filter import list_matching_runs

        with self._read() as sql:
            rows = list_matching_runs(sql, words, kind=kind, archived=archived, sort=sort)
        headings = {column.field: column.heading for column in load_entity("run").columns}
        headings = {"state" if field == "progress" else field: heading for field, heading in headings.items()}
        return Rows(rows, headings)

    def id(self, noun: str, reference: str) -> str:  # type: ignore[override]
        """Return the id of an entity, 32 hex digits. Raises NotFoundError, and BadInputError for an ambiguous
        reference."""
        return super().id(noun, reference).hex

    def things(self, noun: str, *, run: str | None = None, archived: bool = False) -> Rows:
        """Return the rows that `chessreg NOUN list` prints, oldest first; with `run`, only the rows of that run.

        `archived` includes archived entities. Raises NotFoundError for an unknown noun or run.
        """
        from chessreg.entities import load_entity

        entity = load_entity(noun)
        with self._read() as sql:
            rows = entity.rows(sql, run)
        visible_rows = [row for row in rows if archived or entity.is_made_by_runs or not row["archived"]]
        return Rows(visible_rows, {column.field: column.heading for column in entity.columns})

    def show(self, noun: str, reference: str) -> dict[str, Any]:
        """Return the details that `chessreg NOUN show` prints: `reg.show("checkpoint", "reference")`."""
        document: dict[str, Any] = self.command("runs" if noun == "run" else noun, "show", reference)
        return document

    def datasets(self, *, archived: bool = False) -> Rows:
        """Return the datasets, oldest first. `archived` includes archived ones."""
        return self.things("dataset", archived=archived)

    def checkpoints(self, *, archived: bool = False) -> Rows:
        """Return the checkpoints, oldest first. `archived` includes archived ones."""
        return self.things("checkpoint", archived=archived)

    def status(self, since: str = "1d") -> dict[str, Rows]:
        """Return the waiting and running jobs ("going"), and the jobs that ended since a date or duration ("ended")."""
        from chessreg.registry.run_filter import parse_moment
        from chessreg.scheduling import status

        with self._read() as sql:
            active_jobs, ended_jobs = status.list_active(sql), status.list_ended(sql, parse_moment(since))
        headings = {
            "title": "what",
            "name": "name",
            "status": "state",
            "done": "done",
            "units": "units",
            "host": "host",
        }
        return {
            "going": Rows(active_jobs, headings),
            "ended": Rows(ended_jobs, {**headings, "status": "state", "cause": "how"}),
        }

    # -- every other command ---------------------------------------------------------------------------------------

    def command(self, *words: str | Path | float) -> Any:
        """Run a command with --json on this registry and store, and return its JSON document.

        `reg.command("dataset", "split", "lichess", "--parts", "fit=0.8,test=0.2")`. The formats are in
        docs/exit-codes-and-json.md. Raises BadInputError for wrong usage, and any other ChessregError that the command
        would print. A command that reports a failure in its document, such as `wait`, returns the document.
        """
        import io
        import json
        from contextlib import redirect_stdout

        import click

        from chessreg.cli.root import root

        args = ["--registry", self.database.reference, "--store", str(self.store.root), *map(str, words), "--json"]
        with redirect_stdout(io.StringIO()) as output:
            try:
                root.main(args, prog_name="chessreg", standalone_mode=False)
            except click.ClickException as error:
                raise BadInputError(error.format_message()) from error
        return json.loads(output.getvalue())

    def wait(self, *references: str, timeout: float | None = None) -> Any:
        """Wait until launches, jobs or runs have ended, at most `timeout` seconds (None: without limit).

        Returns the document of `chessreg wait`, with their states.
        """
        return self.command("wait", *references, *([] if timeout is None else ["--timeout", str(timeout)]))

    def cancel(self, *references: str) -> Any:
        """Cancel jobs, launches or runs. Return the document of `chessreg cancel`."""
        return self.command("cancel", *references)

    def retry(self, *references: str) -> Any:
        """Queue ended jobs again. Return the document of `chessreg retry`."""
        return self.command("retry", *references)

    def reproduce(self, reference: str, *, rerun: bool = False) -> Any:
        """Return the commands that repeat a run. With `rerun`, repeat it on this machine and return the differing
        results.

        Both are documents of `chessreg reproduce`.
        """
        return self.command("reproduce", reference, *(["--rerun"] if rerun else []))

    def split_dataset(self, reference: str, parts: Mapping[str, float], *, seed: int = 0) -> Any:
        """Divide the games of a dataset into named parts by share: `{"fit": 0.8, "test": 0.2}`.

        Returns the document of `chessreg dataset split`, with the number of games of each part and their overlaps.
        """
        shares = ",".join(f"{name}={share!r}" for name, share in parts.items())
        return self.command("dataset", "split", reference, "--parts", shares, "--seed", seed)

    def export_checkpoint(self, reference: str, folder: str | Path) -> Any:
        """Write a checkpoint as a folder that transformers loads, with tokenizer and model card.

        Raises BadInputError if the folder exists.
        """
        return self.command("export", "checkpoint", reference, folder)

    def export_cache(
        self,
        reference: str,
        folder: str | Path,
        format: Literal["datasets", "safetensors"] = "datasets",
        *,
        hook_points: Sequence[str] = (),
    ) -> Any:
        """Write the activations of the cache run `reference` as a new folder.

        `format` is `datasets` (a Hugging Face dataset) or `safetensors`. `hook_points` defaults to all that are cached.
        """
        words = ["--hook-points", ",".join(hook_points)] if hook_points else []
        return self.command("cache", "export", reference, folder, "--format", format, *words)

    def export_sae(
        self,
        reference: str,
        folder: str | Path,
        layout: Literal["saelens", "dictionary_learning"] = "saelens",
        *,
        layer: int | None = None,
        hook_point: str | None = None,
        expansion: int | None = None,
    ) -> Any:
        """Write an SAE as a new folder that SAELens or dictionary_learning loads.

        `layer`, `hook_point` and `expansion` choose one SAE of the run, as in `sae`; `layout` is the library. Returns
        the document of `chessreg sae export`.
        """
        choice = {"--layer": layer, "--hook-point": hook_point, "--expansion": expansion}
        words = [word for flag, value in choice.items() if value is not None for word in (flag, value)]
        return self.command("sae", "export", reference, folder, "--layout", layout, *words)

    def push(self, *references: str, to: str) -> Any:
        """Copy artifacts to the store `to`: a folder, a URL or a machine over ssh.

        Returns the document of `chessreg push`.
        """
        return self.command("push", *references, "--to", to)

    def pull(self, *references: str, source: str | None = None) -> Any:
        """Copy artifacts into this store from `source`, by default from any known location.

        Returns the document of `chessreg pull`.
        """
        return self.command("pull", *references, *([] if source is None else ["--from", source]))

    # -- imports and annotations ----------------------------------------------------------------------------------

    def add_dataset(
        self, *paths: str | Path, name: str | None = None, rating_scale: str | None = None, licence: str | None = None
    ) -> str:
        """Add files of games (PGN, CSV or Parquet) or positions as one dataset, and return its id (32 hex digits).

        A text such as `s3://BUCKET/*.parquet` is the address of files on other machines. Files with the same bytes as
        an existing dataset return its id. Raises NotFoundError for a missing file, and BadInputError for a file that
        cannot be read or a name that is taken.
        """
        from chessreg.entities.adding import add_dataset
        from chessreg.games.datasets.remote import list_input_files

        files = [file for path in paths for file in list_input_files(path)]
        return add_dataset(
            self.database, self.store, files, name=name, rating_scale=rating_scale, licence=licence
        ).id.hex

    def import_checkpoint(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        encoding: str | Encoding | None = None,
        trained_on: Sequence[str] | None = None,
        vocabulary: str | Path | None = None,
        heads: int | None = None,
        attention: Literal["causal", "bidirectional"] | None = None,
        predicts: Literal["action-value", "state-value"] | None = None,
        rating: int | None = None,
        opponent_rating: int | None = None,
    ) -> str:
        """Convert a model's file or folder, check it by its logits and on sample games, and return the checkpoint's id,
        32 hex digits.

        `heads`, `attention`, `predicts`, `rating` and `opponent_rating` are settings that some files do not record, as
        in `chessreg import checkpoint`. Raises NotFoundError for a missing file or dataset. Raises BadInputError for a
        file that is not a checkpoint, code in a pickle, a different vocabulary, or a name that is taken.
        """
        from chessreg.entities.checkpoint import import_checkpoint
        from chessreg.models.importers import UnrecordedSettings

        return import_checkpoint(
            self.database,
            self.store,
            Path(path),
            name=name,
            encoding=encoding,
            trained_on=trained_on,
            vocabulary=None if vocabulary is None else Path(vocabulary),
            unrecorded_settings=UnrecordedSettings(heads, attention, predicts, rating, opponent_rating),
        ).id.hex

    def import_sae(
        self,
        *folders: str | Path,
        checkpoint: str,
        name: str | None = None,
        hook_points: Sequence[str] = (),
    ) -> str:
        """Import SAEs of one model from folders of SAELens or dictionary_learning and return the run's id, 32
        hex digits.

        `hook_points`: one for each folder, for folders that do not state theirs. Raises NotFoundError, and
        BadInputError for a folder without an SAE, an SAE of another width, and an option that cannot be computed.
        """
        from chessreg.experiments.imported.saes import ImportedSaeSpec

        spec = ImportedSaeSpec(checkpoint=checkpoint, folders=tuple(map(str, folders)), hook_points=tuple(hook_points))
        return self.run(spec, name=name).run_id.hex

    def merge(self, other: str | Path) -> MergeReport:
        """Add the rows of another registry: its folder, file, URL or store. Return the numbers of added rows, and the
        conflicts. Raises NotFoundError if it does not exist."""
        from chessreg.entities.merge import merge_source

        return merge_source(self.database, self.store, str(other))

    def annotate(
        self, reference: str, word: str, value: str = "", *, noun: str = "run", withdrawn: bool = False
    ) -> None:
        """Add an annotation to an entity, or withdraw it.

        `word` is name, tag, note, star, pin, archive or invalid, and `noun` the kind of entity (`run`, `checkpoint`,
        `dataset`, …). Only name, tag, note and invalid have a `value`. With `withdrawn` and no value, all annotations
        with this word are withdrawn.
        """
        from chessreg.registry import names

        with self.database.write() as sql:
            target = names.resolve_id(sql, noun, reference)
            if withdrawn and not value:
                names.withdraw_annotations(sql, noun, target, word)
            else:
                names.add_annotation(sql, noun, target, word, value, withdrawn=withdrawn)

    def name(self, reference: str, name: str, *, noun: str = "run") -> None:
        """Name an entity. The new name replaces the old one. Raises BadInputError for a name that is taken."""
        self.annotate(reference, "name", name, noun=noun)

    def tag(self, reference: str, tag: str, *, noun: str = "run") -> None:
        """Add a tag to an entity. `noun` is the kind of entity: `run`, `checkpoint`, `dataset`, …"""
        self.annotate(reference, "tag", tag, noun=noun)

    def note(self, reference: str, text: str, *, noun: str = "run") -> None:
        """Add a note to an entity. Earlier notes are kept."""
        self.annotate(reference, "note", text, noun=noun)

    def star(self, reference: str, *, noun: str = "run") -> None:
        """Star an entity. `annotate(…, "star", withdrawn=True)` removes the star."""
        self.annotate(reference, "star", noun=noun)

    def pin(self, reference: str, *, noun: str = "run") -> None:
        """Pin a run. `compare` uses it as the baseline."""
        self.annotate(reference, "pin", noun=noun)

    def archive(self, reference: str, *, noun: str = "run") -> None:
        """Hide an entity from lists and queries. `annotate(…, "archive", withdrawn=True)` restores it."""
        self.annotate(reference, "archive", noun=noun)

    def invalidate(self, reference: str, why: str, *, noun: str = "run") -> None:
        """Mark an entity as invalid for the reason `why`. Queries exclude it; results that depend on it are stale."""
        self.annotate(reference, "invalid", why, noun=noun)


def open_registry(
    registry: str | Path | None = None,
    store: str | Path | None = None,
    create: bool = False,
    read_only: bool = False,
) -> Registry:
    """Open a registry as `chessreg.open` does: `registry` and `store` are paths, `create` makes a missing registry, and
    `read_only` refuses every write.
    """
    session = open_session(registry, store, create=create)
    if not read_only:
        return Registry(session.database, session._store)
    from store import Store

    session.database.read_only = True
    root = resolve_store_path(store, session.database.place).resolve()
    return Registry(session.database, lambda: Store(root, read_only=True))
