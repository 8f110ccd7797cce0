"""Kinds of experiment: one class each, found by name, by entry point, or in a user's file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ValidationError, model_serializer

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.masking import is_secret_name, mask
from chessreg.named import NameRegistry, check_name
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.runs.exits import FILE_MODULE_PREFIX, guard_process_exit
from chessreg.runs.spec import (
    ExecutionOptions,
    Spec,
    describe_settings,
    find_variant_tag,
    flatten_settings,
    list_setting_names,
    list_variant_models,
    list_variants,
    name_all_settings,
    parse_settings,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.registry.tables import KindRecord
    from chessreg.runs.inputs import Inputs


@dataclass(frozen=True)
class RunEstimate:
    """An estimate of a run: rows by result table, bytes in the store, and remarks for a dry run."""

    rows: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    remarks: tuple[str, ...] = ()
    operations: float = 0.0  # floating-point operations of matrix products
    cpu_seconds: float = 0.0  # of other work, on one thread


class SparseRow(BaseModel):
    """Base class for a kind's extra columns that omits columns without a value."""

    @model_serializer(mode="wrap")
    def _drop_none(self, serialize: Any) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}


class Kind:
    """A kind of experiment. Subclass it and set `name`; help, runs, queries and board views then include it.

    `units` returns the number of units (games, states, layers) of a spec. `run` processes `task.units`, the missing
    ones, emits their rows and calls `task.done(unit)`. Rows of a unit count only once it is done.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    tables: ClassVar[tuple[str, ...]]  # result tables of its rows
    determinism: ClassVar[Literal["exact", "statistical"]] = "exact"
    spec: ClassVar[Any] = Spec  # a subclass of Spec, or a discriminated union of such classes
    options: ClassVar[type[ExecutionOptions]] = ExecutionOptions
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {}  # result table → extra columns
    queries: ClassVar[tuple[str, ...]] = ()  # catalogue queries that show its results
    next_command: ClassVar[str] = ""  # reads a complete run, whose name is appended, such as `run probe --cache`
    makes_checkpoint: ClassVar[bool] = False  # whether its output `checkpoint` is a model named like the run
    states: ClassVar[tuple[str, ...]] = ()  # patterns of state files from which it resumes (runs/unfinished)
    clocked: ClassVar[tuple[str, ...]] = ()  # metrics that measure time, which `reproduce` does not compare
    example: ClassVar[str] = ""  # settings of a small run on the demo's data, shown in help
    main_settings: ClassVar[tuple[str, ...]] = ()  # at most ten optional settings for `--help`; default: the first ones
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # name → settings; the name is not stored

    def preset(self, name: str) -> dict[str, Any]:
        """Return the settings of a preset: `PlaySpec(**find_kind("play").preset("paper"), checkpoint="mine")`.

        Raises NotFoundError for an unknown preset.
        """
        if name not in self.presets:
            raise NotFoundError(
                f"kind {self.name} has no preset {name!r}", f"it has {', '.join(self.presets) or 'none'}"
            )
        return dict(self.presets[name])

    def select_queries(self, spec: Any) -> tuple[str, ...]:
        """Return those of `queries` in which a run of `spec` has rows. Printed when the run is complete."""
        return self.queries

    def units(self, spec: Any, inputs: Inputs) -> int:
        """Return the number of units of a spec, at least 1."""
        raise NotImplementedError

    def estimate(self, spec: Any, inputs: Inputs) -> RunEstimate:
        """Return the estimated rows, bytes and computing time of a run, for dry runs."""
        return RunEstimate()

    def check(self, spec: Any, inputs: Inputs) -> None:
        """Raise an error for a problem that `run` would find only later. Called before anything is recorded."""

    def check_options(self, spec: Any, options: Any) -> None:
        """Raise an error for execution options that this spec does not allow. Called before anything is recorded."""

    def run(self, task: Any) -> None:
        """Process `task.units`, a share of the run's units. `task` is a `runs.task.Task` with this kind's spec and
        options."""
        raise NotImplementedError

    def in_order(self, spec: Any) -> bool:
        """Return whether one worker must do all units in order, because early units decide whether later ones are
        needed."""
        return False

    def replays(self, spec: Any) -> bool:
        """Return whether this spec gives identical rows on the same machine. If not, `reproduce` compares a
        replicate."""
        return self.determinism == "exact"

    def explain_chance(self, spec: Any) -> str:
        """Return why a rerun of this spec on the same machine may give other rows; empty if it does not, or without a
        known reason."""
        return ""

    # Called once all units are complete, as an additional unit with the number `units`. None: nothing to reduce.
    reduce: ClassVar[Callable[..., None] | None] = None

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return the boards to draw for one row. Empty for kinds without positions."""
        return []

    @property
    def summary(self) -> str:
        """The first line of the class docstring."""
        return (inspect.getdoc(type(self)) or "").split("\n", 1)[0]

    @property
    def source(self) -> str:
        """The source of this kind: `module:CLASS` or `/path/file.py:CLASS`."""
        cls = type(self)
        if not is_importable(cls.__module__):
            return f"{Path(inspect.getfile(cls)).resolve()}:{cls.__name__}"
        package = cls.__module__.rpartition(".")[0]
        is_exported = getattr(sys.modules.get(package), cls.__name__, None) is cls
        return f"{package if is_exported else cls.__module__}:{cls.__name__}"

    @property
    def schemas(self) -> dict[str, Any]:
        """Result table → JSON schema of the kind's extra columns; `run` → schema of its spec. Typed SQL views use
        them."""
        models = {"run": self.spec, **self.columns}
        return {table: make_json_schema(model) for table, model in models.items()}


def make_json_schema(model: Any) -> dict[str, Any]:
    """Return the JSON schema of a model. A discriminated union becomes one object with the properties of all
    variants."""
    schemas = [_make_schema(each) for each in list_variant_models(model)]
    if not (tag := find_variant_tag(model)):
        return schemas[0]
    merged_schema: dict[str, Any] = {"type": "object", "title": f"by {tag}"}
    for part in ("$defs", "properties"):
        merged_schema[part] = {name: value for schema in schemas for name, value in schema.get(part, {}).items()}
    merged_schema["properties"][tag] = {"type": "string", "enum": list(list_variants(model))}
    return merged_schema


@lru_cache(maxsize=500)
def _make_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a class, cached because computing the schemas of all kinds is as slow as a query."""
    return model.model_json_schema()


def read_kind_file(kind: Kind) -> dict[str, str] | None:
    """Return name and SHA-256 of the file that defines a custom kind.

    None for built-in and installed kinds, whose versions are recorded, and for one without a file, as in a notebook.
    """
    module = sys.modules.get(type(kind).__module__)
    path = Path(getattr(module, "__file__", None) or "")
    is_built_in = type(kind).__module__.partition(".")[0] == OWN_PACKAGE.partition(".")[0]
    if not path.name or is_built_in or {"site-packages", "dist-packages"}.intersection(path.parts):
        return None
    digest = vars(module).get("__digest__")  # of the content that was executed
    try:
        digest = digest or hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
    return {"file": mask(path.name), "sha256": digest}


def is_importable(module: str) -> bool:
    """Return whether a module was imported normally rather than loaded from a user's file."""
    return not module.startswith(FILE_MODULE_PREFIX)


OWN_PACKAGE = "chessreg.experiments"
ENTRY_POINT_GROUP = "chessreg.kinds"
_loading = threading.RLock()  # reentrant, since a file may load another


def list_kinds_in_module(module: Any) -> list[type[Kind]]:
    """Return the kinds that a module or package defines."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Kind)
        and f"{value.__module__}.".startswith(f"{module.__name__}.")
        and "name" in vars(value)
    ]


def create_kind(cls: type[Kind]) -> Kind:
    """Return an instance of a kind. Raises BadInputError for mistakes in its definition that would fail later."""
    check_name("a kind", cls.name)
    for method, parameters in (("units", "spec, inputs"), ("run", "task")):
        if getattr(cls, method) is getattr(Kind, method):
            raise BadInputError(f"kind {cls.name} has no method {method}(self, {parameters})")
    tables = getattr(cls, "tables", ())
    if isinstance(tables, str):
        raise BadInputError(f"kind {cls.name}: `tables` is a text, not a tuple", f'tables = ("{tables}",)')
    unknown_tables = set(tables) - set(RESULT_TABLES)
    if unknown_tables or not tables:
        raise BadInputError(
            f"kind {cls.name}: its result tables must be some of {', '.join(RESULT_TABLES)}",
            f"not {', '.join(sorted(unknown_tables))}" if unknown_tables else "it has no `tables`",
        )
    require_valid_variants(cls)
    shared_names = list_setting_names(cls.spec) & set(cls.options.model_fields)
    if shared_names:
        raise BadInputError(
            f"kind {cls.name}: {', '.join(sorted(shared_names))} is both a setting and an execution option"
        )
    texts = (each.path for model in (cls.spec, cls.options) for each in describe_settings(model) if each.form == "text")
    if secret := sorted(filter(is_secret_name, texts)):
        raise BadInputError(
            f"kind {cls.name}: the setting {secret[0]} would be recorded in the registry",
            "read it from the environment or a file in run()",
        )
    paths = {setting.path for setting in describe_settings(cls.spec)}
    if len(cls.main_settings) > 10 or not paths.issuperset(cls.main_settings):
        raise BadInputError(
            f"kind {cls.name}: main_settings must name at most ten settings of its spec",
            f"not {', '.join(sorted(set(cls.main_settings) - paths))}" if set(cls.main_settings) - paths else "",
        )
    for preset, values in cls.presets.items():
        if unknown_names := min(
            (set(values) - set(each.model_fields) for each in list_variant_models(cls.spec)), key=len
        ):
            raise BadInputError(
                f"kind {cls.name}: preset {preset} fills {', '.join(sorted(unknown_names))}", "no such setting"
            )
    return cls()


def require_valid_variants(cls: type[Kind]) -> None:
    """Raise BadInputError unless `spec` is a Spec or a discriminated union of Specs with a consistent definition.

    The tag must have no default, and a setting must have the same type in all variants.
    """
    tag, tags_by_value = find_variant_tag(cls.spec), dict[str, Any]()
    for variant in list_variant_models(cls.spec):
        if not (inspect.isclass(variant) and issubclass(variant, Spec)):
            raise BadInputError(
                f"kind {cls.name}: `spec` is neither a subclass of Spec nor a discriminated union of such classes",
                'spec = Annotated[SpecA | SpecB, Field(discriminator="mode")]',
            )
        if tag and (tag not in variant.model_fields or not variant.model_fields[tag].is_required()):
            problem = "has a default" if tag in variant.model_fields else "is missing"
            raise BadInputError(
                f"kind {cls.name}: the tag {tag} of {variant.__name__} {problem}", f'{tag}: Literal["…"]'
            )
        for each in describe_settings(variant):
            other = tags_by_value.setdefault(each.path, each)
            if (each.form, each.type, each.noun) != (other.form, other.type, other.noun):
                raise BadInputError(
                    f"kind {cls.name}: the setting {each.path} is a {other.form} in one variant, and a {each.form} in "
                    f"{variant.__name__}",
                    "give one of them another name",
                )


def load_kind_file(reference: str) -> Kind:
    """Return the kind `./file.py:CLASS` named in a user's command. CLASS is optional if the file defines one kind.

    Naming a file trusts it. Raises NotFoundError, BadInputError, and NotTrustedError for a file in a store.
    """
    from chessreg.runs import trust

    path, name = split_file_reference(reference)
    path, content = trust.read_code_file(path)
    trust.trust_named_file(path, trust.hash_content(content))
    return find_kind_in_file(path, content, name)


def load_trusted_kind(reference: str) -> Kind:
    """Return the kind of a file that the user did not name, such as the recorded source of a run.

    Raises NotTrustedError unless its content is trusted (`runs.trust`).
    """
    from chessreg.runs import trust

    path, name = split_file_reference(reference)
    return find_kind_in_file(*trust.read_trusted_file(path), name)


def split_file_reference(reference: str) -> tuple[Path, str]:
    """Split `file.py:CLASS` into path and class name. The name may be empty."""
    path, _, name = reference.partition(".py")
    return Path(path + ".py"), name.removeprefix(":")


def find_kind_in_file(path: Path, content: bytes, name: str) -> Kind:
    """Return the kind named `name` in a file with this content. Only `content` is executed, never compiled files.

    Raises NotFoundError, and BadInputError if the choice is ambiguous or the kind's name is taken.
    """
    with _loading:  # a second thread waits until the file has run
        module = load_file_module(path, content)
    kinds = {kind.__name__: kind for kind in list_kinds_in_module(module)}
    if name and name not in kinds:
        raise NotFoundError(f"{path} defines no kind {name}", f"it defines {', '.join(kinds) or 'none'}")
    if not kinds:
        raise BadInputError(f"{path} defines no kind", "define a subclass of chessreg.kinds.Kind")
    if not name and len(kinds) != 1:
        raise BadInputError(f"{path} defines {len(kinds)} kinds", f"choose one: {path}:CLASS")
    found_kind = create_kind(kinds[name] if name else next(iter(kinds.values())))
    if find_own_kind(found_kind.name) is not None:
        raise BadInputError(f"{path}: chessreg has a kind {found_kind.name} already", "give yours another name")
    return found_kind


def load_file_module(path: Path, content: bytes) -> ModuleType:
    """Return the module of a user's file with this content, executing it unless it is loaded already."""
    name, digest = FILE_MODULE_PREFIX + path.stem, hashlib.sha256(content).hexdigest()
    module = sys.modules.get(name)
    if module is not None and (module.__file__, vars(module).get("__digest__")) == (str(path), digest):
        return module
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    module = importlib.util.module_from_spec(spec)
    vars(module)["__digest__"] = digest
    sys.modules[name] = module
    guard_process_exit()
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (ChessregError, KeyboardInterrupt)):
            raise
        if isinstance(error, SyntaxError) and error.filename == str(path):
            raise BadInputError(f"{path}, line {error.lineno}: {error.msg}") from error
        raise BadInputError(f"{path} fails to import: {error!r}") from error
    return module


def load_kinds() -> NameRegistry[Kind]:
    """Return every kind by name: built-in kinds and the entry points `chessreg.kinds`. Broken kinds are skipped."""
    return load_kinds_and_failures()[0]


def load_kinds_and_failures() -> tuple[NameRegistry[Kind], dict[str, ChessregError]]:
    """Return every kind by name, and the errors of broken kinds by module or entry point."""
    from chessreg import plugins

    registry: NameRegistry[Kind] = NameRegistry("kind of experiment")
    classes, failures = [], {}
    for info in pkgutil.iter_modules(importlib.import_module(OWN_PACKAGE).__path__):
        try:
            classes += [(info.name, cls) for cls in list_own_kinds_in(info.name)]
        except ChessregError as error:
            failures[info.name] = error
    for point in plugins.list_entry_points(ENTRY_POINT_GROUP):
        try:
            classes.append((point.name, load_kind_entry_point(point)))
        except ChessregError as error:
            failures[point.name] = error
    for name, cls in classes:
        if cls.name in registry:
            raise BadInputError(f"two kinds are named {cls.name}", f"{registry[cls.name].source} and {cls.__module__}")
        try:
            registry[cls.name] = create_kind(cls)
        except ChessregError as error:
            failures[name] = error
    return registry, failures


def load_kind_entry_point(point: EntryPoint) -> type[Kind]:
    """Return the kind of an entry point. Raises ChessregError naming the package."""
    from chessreg import plugins

    cls: type[Kind] = plugins.load_entry_point(point, "kind")
    if not (inspect.isclass(cls) and issubclass(cls, Kind) and hasattr(cls, "name")):
        raise ChessregError(
            f"kind {point.name} of {plugins.describe_package(point)} cannot be loaded: "
            f"{point.value} is not a named subclass of chessreg.kinds.Kind"
        )
    return cls


def find_kind(reference: str) -> Kind:
    """Return the kind that a user's command names: by name, by file `./my_kind.py:MyKind`, or as `module:CLASS`.

    It imports any module given to it, so use `find_recorded_kind` for sources from a registry.
    """
    if ".py" in reference:
        return load_kind_file(reference)
    if ":" in reference:
        module, _, name = reference.partition(":")
        try:
            class_or_kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise NotFoundError(f"kind {reference} cannot be loaded", str(error)) from error
        if not (inspect.isclass(class_or_kind) and issubclass(class_or_kind, Kind)):
            raise NotFoundError(f"{reference} is not a kind of experiment")
        return create_kind(class_or_kind)
    if (custom_kind := find_own_kind(reference)) is not None:
        return custom_kind
    kinds, failures = load_kinds_and_failures()
    if reference not in kinds and (failure := failures.get(reference) or failures.get(reference.replace("-", "_"))):
        raise failure
    return kinds[reference]


def is_checkpoint_maker(name: str) -> bool:
    """Return whether runs of the built-in or installed kind with this name make a model."""
    if (custom_kind := find_own_kind(name)) is not None:
        return custom_kind.makes_checkpoint
    kinds, _ = load_kinds_and_failures()
    return name in kinds and kinds[name].makes_checkpoint


def find_own_kind(name: str) -> Kind | None:
    """Return the built-in kind with this name, or None. Only its module is imported, named like the kind or its first
    word."""
    parts = name.replace("-", "_").partition("_")
    for module in dict.fromkeys(("".join(parts), parts[0])):
        for cls in list_own_kinds_in(module):
            if cls.name == name:
                return create_kind(cls)
    return None


def list_effective_settings(kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recorded run by dotted path, without those that have no effect, for display.

    A setting that was left out and then means all is "all". Specs of kinds that are not built in, and of versions that
    cannot be read any more, are returned whole.
    """
    values, custom_kind = flatten_settings(spec), find_own_kind(kind)
    if custom_kind is not None:
        values = name_all_settings(custom_kind.spec, values)
        with suppress(ChessregError, ValidationError):
            idle = parse_settings(custom_kind.spec, spec).without_effect()
            return {path: value for path, value in values.items() if path not in idle}
    return values


def find_kind_of_record(record: KindRecord, read_only: bool = False) -> Kind:
    """Return the kind of a row of the table `kind`: the built-in one of that name, else that of
    `find_recorded_kind`."""
    return find_own_kind(record.name) or find_recorded_kind(record.source, read_only)


def find_recorded_kind(source: str, read_only: bool = False) -> Kind:
    """Return the kind of a source `module:CLASS` or `/path/file.py:CLASS` from a registry or a job.

    Such sources are untrusted. Modules are limited to built-in kinds, entry points and modules already imported. Files
    must be trusted, and are refused if `read_only`. Raises NotTrustedError with the command that trusts the file, and
    NotFoundError.
    """
    if ".py" in source:
        if read_only:
            from chessreg.runs import trust

            raise trust.NotTrustedError(
                f"the kind in {source.partition('.py')[0]}.py is not loaded in read-only mode",
                "run without --read-only and trust the file (chessreg trust --list)",
            )
        return load_trusted_kind(source)
    module, _, name = source.partition(":")
    for cls in list_installed_kinds_in(module):
        if cls.__name__ == name:
            return create_kind(cls)
    raise NotFoundError(
        f"the kind {source} is not installed. chessreg does not load code that is only named in a registry",
        "install its package (entry point chessreg.kinds); queries work without it",
    )


def list_installed_kinds_in(module: str) -> list[type[Kind]]:
    """Return the kinds of `module` that are built in, installed as entry points, or already imported.

    Raises ChessregError if the module belongs to an entry point that cannot be loaded.
    """
    from chessreg import plugins

    if module == OWN_PACKAGE or module.startswith(f"{OWN_PACKAGE}."):
        return list_own_kinds_in(module.removeprefix(OWN_PACKAGE).removeprefix(".").partition(".")[0])
    package = module.partition(".")[0]
    classes = []
    for point in plugins.list_entry_points(ENTRY_POINT_GROUP):
        if point.module.partition(".")[0] == package:
            try:
                classes.append(load_kind_entry_point(point))
            except ChessregError:
                if point.module == module:
                    raise
    classes += getattr(sys.modules.get(module), "__dict__", {}).values()
    return [value for value in classes if inspect.isclass(value) and issubclass(value, Kind)]


def list_own_kinds_in(module: str) -> list[type[Kind]]:
    """Return the built-in kinds in this module. Empty if it does not exist.

    Raises ChessregError, with file and line, if the module is broken.
    """
    name = f"{OWN_PACKAGE}.{module}"
    if not module.isidentifier() or importlib.util.find_spec(name) is None:
        return []
    from chessreg import plugins  # not imported at startup

    return list_kinds_in_module(plugins.load_custom_module(name))


def find_kind_of_spec(spec: Spec, reference: str | Kind | type[Kind] | None = None) -> Kind:
    """Return the kind given as `reference`, else the kind that `spec` belongs to. Raises NotFoundError."""
    if isinstance(reference, Kind):
        return reference
    if inspect.isclass(reference):
        return create_kind(reference)
    if reference:
        return find_kind(reference)
    module = type(spec).__module__.removeprefix(f"{OWN_PACKAGE}.").partition(".")[0]
    for cls in list_own_kinds_in(module):
        if type(spec) in list_variant_models(cls.spec):
            return create_kind(cls)
    for candidate in load_kinds().values():
        if type(spec) in list_variant_models(candidate.spec):
            return candidate
    raise NotFoundError(f"no kind of experiment has the spec {type(spec).__name__}", "give kind='./file.py'")
