"""One registry and one store, open: experiments, and the entities that they made by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from chessreg.registry.database import Database
from chessreg.registry.place import RegistryPlace, resolve_place, resolve_store_path
from chessreg.registry.tables.provenance import LONG_RUN_UNITS

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.models.language_model import LanguageModel
    from chessreg.models.sparse_autoencoders import SparseAutoencoder
    from chessreg.queries.result import QueryResult
    from chessreg.runs.attempt import RunReport
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.kind import Kind
    from chessreg.runs.spec import ExecutionOptions, Spec
    from store import Store


class Session:
    """A registry and a store, open. Close it, or use it in a `with`."""

    def __init__(self, database: Database, store: Store | Callable[[], Store]) -> None:
        self.database, self._store = database, store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()
        if not callable(self._store):
            self._store.release()

    @property
    def store(self) -> Store:
        """The store, opened when first asked for. Raises StoreError when it is not there."""
        if callable(self._store):
            self._store = self._store()
        return self._store

    @property
    def inputs(self) -> Inputs:
        from chessreg.runs.inputs import Inputs

        return Inputs(self.database, self.store)

    def bring_up_to_date(self) -> str:
        """Ingest the results that wait in the store and mark lost attempts, as every listing command does.

        Return the reason if this fails, otherwise an empty string.
        """
        from chessreg.errors import ChessregError
        from chessreg.runs.ingest import ingest_fragments
        from chessreg.runs.watch import Watcher
        from store.errors import StoreError

        start = time.monotonic()
        try:
            ingest_fragments(self.database, self.store)
            Watcher(self.store).mark_lost_attempts(self.database, start)
        except (ChessregError, StoreError) as error:
            with suppress(StoreError):
                Watcher(self.store).forget()
            return error.message
        return ""

    # -- experiments ----------------------------------------------------------------------------------------------

    def run(
        self,
        spec: Spec,
        options: ExecutionOptions | None = None,
        *,
        kind: str | Kind | type[Kind] | None = None,
        name: str | None = None,
        explicit: tuple[str, ...] | None = None,
        on_progress: Callable[[float, str], None] = lambda fraction, text: None,
    ) -> RunReport:
        """Execute the missing units of the run of a spec. A complete run is left unchanged.

        `name` is added to the run's names.

        The kind follows from the spec's class; `kind` is needed only for a user's kind: the path of its file, which is
        then trusted (`runs.trust`), or the kind or its class.
        """
        from chessreg.registry import names
        from chessreg.runs import attempt
        from chessreg.runs.kind import find_kind_of_spec

        run_kind = find_kind_of_spec(spec, kind)

        def check_name(resolved_spec: Any, missing_units: int) -> None:
            if name:  # refuse a taken name before anything is done
                with self.database.read() as session:
                    names.require_free_name(session, "run", resolved_spec.run_id, name)

        def name_run(run_id: UUID) -> None:
            if name:
                with self.database.write() as session:
                    names.add_name(session, "run", run_id, name)

        report = attempt.run_spec(
            run_kind,
            spec,
            options or run_kind.options(),
            self.database,
            self.store,
            explicit=tuple(sorted(spec.model_fields_set)) if explicit is None else explicit,
            on_start=check_name,
            on_begun=name_run,
            on_progress=on_progress,
        )
        if report.attempt_id is None:  # it was complete already
            name_run(report.run_id)
            return report
        if report.units >= LONG_RUN_UNITS:
            from chessreg.queries.numbers import store_numbers

            store_numbers(self.database, report.run_id)
        return report

    def launch(
        self,
        spec: Spec,
        options: ExecutionOptions | None = None,
        *,
        kind: str | Kind | type[Kind] | None = None,
        name: str | None = None,
        **queueing: Any,
    ) -> str | None:
        """Queue a spec's run as jobs that outlive this process.

        `options` are the execution options, `kind` is the kind if the spec's class does not belong to one, and
        `queueing` are the options of `chessreg launch`: `on`, `shards`, `priority`, … Returns the launch's id (32 hex
        digits), which `chessreg wait` accepts, or None if all runs are complete.
        """
        from chessreg.runs.kind import find_kind_of_spec
        from chessreg.scheduling.launch import Order, launch_orders
        from chessreg.scheduling.presence import Presence

        run_kind = find_kind_of_spec(spec, kind)
        order = Order(
            run_kind, spec, options or run_kind.options(), tuple(sorted(spec.model_fields_set)), name, **queueing
        )
        group, _ = launch_orders([order], self.database, self.store)
        if group is not None:
            Presence(self.store).start(self.database.reference)
        return group.hex if group is not None else None

    def query(self, name: str, **scope: Any) -> QueryResult:
        """Return the answer of a catalogue query: `reg.query("elo by intervention").to_pandas()`.

        `name` is its title, an alias, or words that describe it. `scope` are the options of `chessreg query` as
        keywords: `checkpoint`, `run`, `tag`, `where`, … Raises NotFoundError for an unknown query.
        """
        from chessreg.queries import run_query

        return run_query(self.database, name, **scope)

    # -- entities by name or id -------------------------------------------------------------------------------------

    def id(self, noun: str, reference: str) -> UUID:
        """Return the id of an entity by its noun (`run`, `checkpoint`, …) and its name, its id or the end of its id.

        Raises NotFoundError if nothing matches, BadInputError if several entities do.
        """
        from chessreg.registry import names

        with self.database.read() as session:
            return names.resolve_id(session, noun, reference)

    def dataset(self, reference: str) -> Games:
        """Return the games of a dataset, or of one part: `reg.dataset("lichess:test")`.

        Raises NotFoundError for an unknown name, BadInputError for a dataset of positions.
        """
        games, part = self.inputs.dataset(self.inputs.reference("dataset", reference))
        return games if part is None else games.part(part)

    def model(self, reference: str, device: str = "cpu") -> LanguageModel:
        """Return the model of a checkpoint by name or id, loaded on `device` (`cpu`, `cuda`, …).

        Raises NotFoundError if the checkpoint is unknown or its weights are not in the store.
        """
        from chessreg.models.language_model import LanguageModel

        inputs = self.inputs
        _, folder = inputs.checkpoint(inputs.reference("checkpoint", reference))
        return LanguageModel.load(folder, device=device)

    def probe(self, reference: str, layer: int | None = None) -> Any:
        """Return a fitted probe of a probe run: `.weight` is float32 [d_model, 64 or 1, classes].

        By default the layer with the best validation score. Raises BadInputError if the run has no such layer.
        """
        from chessreg.runs.fitted import load_probe

        return load_probe(self.inputs, self.inputs.reference("run:probe", reference), layer)

    def vector(self, reference: str, layer: int | None = None) -> Any:
        """Return a direction of a vector run, float32 [d_model].

        `layer` may be left out if the run has only one. Raises BadInputError if it has several, or no such layer.
        """
        from chessreg.runs.fitted import load_vector

        return load_vector(self.inputs, self.inputs.reference("run:vector", reference), layer)

    def import_vector(
        self,
        vector: Any,
        layer: int,
        *,
        checkpoint: str,
        name: str | None = None,
        label: str = "",
        hook_point: str = "blocks.*.hook_resid_post",
    ) -> str:
        """Record a direction from elsewhere as a vector run with source `user`, and return the run's id, 32 hex digits.

        `vector`: tensor or array, float [d_model]. `layer`: 0-based. `label`: the intervention's name in tables; the
        run's name when left out. Raises BadInputError for another shape, NaN, zeros, or a width that is not the
        checkpoint's.
        """
        import tempfile

        import numpy as np

        from chessreg.errors import BadInputError
        from chessreg.experiments.imported.directions import ImportedVector, build_import_spec

        array = np.asarray(vector.detach().cpu().float() if hasattr(vector, "detach") else vector, np.float32)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vector.npy"
            np.save(path, array)
            settings = {"checkpoint": checkpoint, "layers": (layer,), "label": label, "hook_point": hook_point}
            try:
                spec = build_import_spec(ImportedVector, [path], self.inputs, name, **settings)
            except BadInputError as error:
                message = error.message.replace(str(path), "the vector").replace(path.name, "the vector")
                raise BadInputError(message, error.hint) from error
            return self.run(spec, name=name).run_id.hex

    def sae(
        self, reference: str, layer: int | None = None, hook_point: str | None = None, expansion: int | None = None
    ) -> SparseAutoencoder:
        """Return a sparse autoencoder of an SAE run, selected by `layer`, `hook_point` and `expansion` if it has
        several.

        It has `.encode(residual)` [..., features], `.decode(latents)` [..., d_model], `.W_dec` float32 [features,
        d_model] and its other parameters, as tensors.
        """
        from chessreg.experiments.sae.stored import load_sae

        return load_sae(self.inputs, self.inputs.reference("run:sae", reference), layer, hook_point, expansion)

    def cache(self, reference: str, hook_point: str | None = None) -> Any:
        """Return the activations of a cache run.

        `.batches(layer=5)` iterates over them, and `.read(layer=5)` returns them with each row's game, token and ply.
        They are the outputs of the blocks, or with `hook_point` the activations at this point of each layer, such as
        `blocks.*.hook_resid_pre`.
        """
        from chessreg.models.hook_points import RESID_POST
        from chessreg.runs.activations import load_cache

        return load_cache(self.inputs, self.inputs.reference("run:cache", reference), pattern=hook_point or RESID_POST)


def open_session(
    registry: str | Path | RegistryPlace | None = None, store: str | Path | None = None, create: bool = True
) -> Session:
    """Open a registry (a path, a folder or a URL) and its store; by default ./.chessreg/, made on first use.

    With `create` False nothing is made. Raises NotFoundError if the registry does not exist, and StoreError if the
    requested store does not exist. A registry or store that this user may not write is opened for reading.
    """
    from store import Store

    place = resolve_place(registry)
    root = resolve_store_path(store, place).resolve()
    database = Database.open(place, create=create)
    if not create:
        return Session(database, lambda: Store.open_existing(root))
    try:
        return Session(database, Store.create(root))
    except BaseException:
        database.close()
        raise
