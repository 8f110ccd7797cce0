"""Runs as a paper describes them, and the differences of recorded runs from them.

The TOML files of a paper's numbers describe each run behind them in a table `[run.NAME]`:

    [run.edits]
    kind = "edit-next-token"
    preset = "davis-published-code"      # optional: settings of the kind's preset
    settings = { checkpoint = "tag:davis-2026:gpt", probe = "run:probe", scale = 0.5 }
    free = { seed = "not stated" }       # settings that the paper does not state, with the reason
    shown = { layers = "layers" }        # settings that a column of the query shows, with the column

A run that several models share has `{model}` in its name. It is described once for each entry of the file's table
`[models]`. In all its texts, `{model}` is replaced by the entry's name and `{checkpoint}` by its value.

Every setting of the kind that is not listed has its default. The description is therefore always complete: it includes
settings that are added to the kind later. A setting is not compared only if the file lists it in `free` or `shown`. A
seed that the file does not state is not compared.

A reference in `settings` is one of these:

    tag:T              a checkpoint with tag T, or a whole dataset with that tag
    part:T             a dataset with tag T, or a part of it
    untrained:T        the random-init control of a checkpoint with tag T
    run:NAME           a run that does not differ from the paper's run NAME
    files:NAME         a file, or several, whose digests in the store are all in the list `[files] NAME`
    none               no reference
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from chessreg.errors import ChessregError

NONE: Mapping[str, Any] = MappingProxyType({})
UNKNOWN = "unknown"
ALWAYS_FREE = {"seed": "not stated", "replicate": "numbers repetitions of one run"}
SELECTORS = ("tag:", "part:", "untrained:", "run:", "files:")


@dataclass(frozen=True)
class PaperRun:
    """A run of a paper. `settings` holds every setting of the kind, nested ones as mappings. `defaults`, `free` (with
    the reason) and `shown` (with the column) have dotted names."""

    name: str
    kind: str
    version: int
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    free: Mapping[str, str]
    shown_settings: Mapping[str, str]


@dataclass(frozen=True)
class RecordedRun:
    """A run of the registry, or of a plan: its kind, the kind's version, and its settings."""

    kind: str
    version: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class World:
    """The inputs of recorded runs: the run behind a reference, or None, and the tags of a checkpoint or dataset. A
    random-init control has the tags of the model that it imitates, each prefixed with `untrained:`."""

    run_at: Callable[[str], RecordedRun | None]
    tags_of: Callable[[str], frozenset[str]]


class PaperRuns:
    """The runs and the lists of files that the TOML files of one paper describe. Runs are read on demand, because
    reading them loads their kinds. Raises ChessregError if two share a name."""

    def __init__(self, documents: Sequence[Mapping[str, Any]] = ()) -> None:
        self.entries: dict[str, Mapping[str, Any]] = {}
        self.files: dict[str, Sequence[str]] = {}
        for document in documents:
            runs = fill_in_models(document.get("run", {}), document.get("models", {}))
            for key, known_names, entries in (
                ("run", self.entries, runs),
                ("files", self.files, document.get("files", {})),
            ):
                for name, entry in entries.items():
                    if known_names.setdefault(name, entry) is not entry:
                        raise ChessregError(f"two files of {document['paper']} describe {key} {name}")
        self._runs: dict[str, PaperRun] = {}

    def run(self, name: str, changes: Mapping[str, Any] = NONE) -> PaperRun:
        """Return the run of this name, with other values of some settings. Raises ChessregError for an unknown name,
        key or setting."""
        from chessreg.runs.spec import merge_settings

        if name not in self.entries:
            raise ChessregError(f"the published numbers name run {name}, which no file describes")
        key = f"{name} {sorted(changes.items())}"
        if key not in self._runs:
            entry = self.entries[name]
            settings = merge_settings(dict(entry.get("settings", {})), dict(changes))
            self._runs[key] = parse_paper_run(name, {**entry, "settings": settings})
        return self._runs[key]

    def check(self) -> None:
        """Raise ChessregError for a run that cannot be read, or that names a run or list the file does not have."""
        from chessreg.runs.spec import flatten_settings

        for run in map(self.run, self.entries):
            values = [
                value if isinstance(value, list) else [value] for value in flatten_settings(run.settings).values()
            ]
            for form, _, name in (str(each).partition(":") for value in values for each in value if is_selector(each)):
                if (form == "run" and name not in self.entries) or (form == "files" and name not in self.files):
                    raise ChessregError(f"run {run.name} names {form}:{name}, which no file describes")


def fill_in_models(runs: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
    """Return the run tables by name. A table whose name contains `{model}` is repeated for each of `models` (name →
    checkpoint)."""
    values: dict[str, Any] = {}
    for name, entry in runs.items():
        if "{model}" in name:
            for model, checkpoint in models.items():
                values[name.replace("{model}", model)] = fill_in_model(entry, model, checkpoint)
        else:
            values[name] = entry
    return values


def fill_in_model(value: Any, model: str, checkpoint: str) -> Any:
    """Return a value of a TOML file with `{model}` and `{checkpoint}` replaced in its texts."""
    if isinstance(value, str):
        return value.replace("{model}", model).replace("{checkpoint}", checkpoint)
    if isinstance(value, list):
        return [fill_in_model(each, model, checkpoint) for each in value]
    if isinstance(value, Mapping):
        return {key: fill_in_model(each, model, checkpoint) for key, each in value.items()}
    return value


def parse_paper_run(name: str, entry: Mapping[str, Any]) -> PaperRun:
    """Return the run of one table `[run.NAME]`. Raises ChessregError for an unknown key or setting."""
    from chessreg.runs.kind import find_kind as find_kind
    from chessreg.runs.spec import build_settings, describe_settings, list_setting_names

    if unknown_keys := set(entry) - {"kind", "preset", "settings", "free", "shown"}:
        raise ChessregError(f"run {name} has unknown keys: {', '.join(sorted(unknown_keys))}")
    kind = find_kind(entry["kind"])
    preset = kind.preset(entry["preset"]) if "preset" in entry else {}
    settings = describe_settings(kind.spec)
    literal = {each.path for each in settings if isinstance(each.default, str)}  # text settings: `none` is a value
    typed_settings = {
        key: None if value == "none" and key not in literal else value
        for key, value in entry.get("settings", {}).items()
    }
    needed_settings = {
        each.path: "not stated" for each in settings if each.is_required and each.path in entry.get("free", {})
    }
    spec = build_settings(kind.spec, needed_settings | typed_settings, preset)
    always_free = {
        setting: reason for setting, reason in ALWAYS_FREE.items() if setting not in {*typed_settings, *preset}
    }
    free, shown_settings = {**always_free, **entry.get("free", {})}, dict(entry.get("shown", {}))
    for setting in (*free, *shown_settings):
        if setting.partition(".")[0] not in list_setting_names(kind.spec):
            raise ChessregError(f"run {name} lists {setting}, which is not a setting of {kind.name}")
    defaults = {each.path: each.default for each in settings if not each.is_required}
    return PaperRun(name, kind.name, kind.version, spec.model_dump(mode="json"), defaults, free, shown_settings)


class PaperComparison:
    """Differences of recorded runs from the runs of one paper."""

    def __init__(self, runs: PaperRuns, world: World) -> None:
        self.runs, self.world = runs, world

    def list_differences(self, ours: RecordedRun, paper: PaperRun) -> list[str]:
        """Return a text for each setting of `ours` that differs from the paper's, inputs included."""
        if ours.kind != paper.kind:
            return [f"made by {ours.kind}, the paper's number by {paper.kind}"]
        texts = self.compare_settings(ours.settings, paper.settings, paper)
        if ours.version != paper.version:
            texts.append(f"made by version {ours.version} of {ours.kind}, not {paper.version}")
        return texts

    def list_unstated_settings(self, ours: RecordedRun, paper: PaperRun) -> list[str]:
        """Return our values of the settings that the paper does not state."""
        from chessreg.runs.spec import flatten_settings

        return [
            f"{name} {format_value_phrase(value)}"
            for name, value in flatten_settings(ours.settings).items()
            if name in paper.free and name not in ALWAYS_FREE
        ]

    def compare_settings(
        self, ours: Mapping[str, Any], paper_settings: Mapping[str, Any], paper: PaperRun, prefix: str = ""
    ) -> list[str]:
        """Return the differences of (nested) settings. `prefix` is prepended to their dotted names."""
        texts: list[str] = []
        for name in dict.fromkeys((*paper_settings, *ours)):
            setting = prefix + name
            if setting in paper.free or setting in paper.shown_settings:
                continue
            paper_value = paper_settings.get(name, UNKNOWN)
            default = {} if isinstance(paper_value, Mapping) else paper.defaults.get(setting, UNKNOWN)
            our_value = ours.get(name, default)  # a run of an earlier version of the kind has fewer settings
            if isinstance(our_value, Mapping) and isinstance(paper_value, Mapping):
                texts += self.compare_settings(our_value, paper_value, paper, f"{setting}.")
            elif isinstance(our_value, Mapping) or isinstance(paper_value, Mapping):
                texts.append(
                    f"{setting} {format_value_phrase(our_value)}, the paper's {format_value_phrase(paper_value)}"
                )
            else:
                texts += self.compare_setting(setting, our_value, paper_value)
        return texts

    def compare_setting(self, setting: str, ours: Any, paper_value: Any) -> list[str]:
        """Return the differences of one setting, at most one text for a value that is not a run."""
        is_list = isinstance(paper_value, list)
        if is_selector(paper_value) or (is_list and any(map(is_selector, paper_value))):
            return self.compare_references(setting, ours, paper_value)
        if is_equal(ours, paper_value):
            return []
        return [f"{setting} {format_value_phrase(ours)}, the paper's {format_value_phrase(paper_value)}"]

    def compare_references(self, setting: str, ours: Any, paper_value: Any) -> list[str]:
        """Return the differences between our inputs and the paper's, as one text each.

        `ours` is a reference and `paper_value` a selector, or both are lists of them.
        """
        our_references = ours if isinstance(ours, list | tuple) else [ours]
        paper_references = paper_value if isinstance(paper_value, list) else [paper_value]
        if len(paper_references) == 1 and paper_references[0].startswith("files:"):
            paper_references = paper_references * len(our_references)
        if len(our_references) != len(paper_references):
            return [f"{setting}: {len(our_references)}, the paper has {len(paper_references)}"]
        return [
            text
            for pair in zip(our_references, paper_references, strict=True)
            for text in self.compare_input(setting, *pair)
        ]

    def compare_input(self, setting: str, ours: str | None, paper_value: str) -> list[str]:
        """Return the differences of one input from the paper's, as one text each.

        `ours` is our input reference (None: no input). `paper_value` is the paper's: one of SELECTORS and a name.
        """
        form, _, name = paper_value.partition(":")
        if ours is None:
            return [f"{setting} none, the paper has one"]
        if form == "files":
            return [] if ours.removeprefix("sha256:") in self.runs.files[name] else [f"{setting}: not the paper's file"]
        if form == "run":
            run = self.world.run_at(ours)
            if run is None:
                return [f"{setting}: not made by a run of this registry"]
            return [f"{setting}: {text}" for text in self.list_differences(run, self.runs.run(name))]
        base, bracket, _ = ours.partition("[")
        tags = self.world.tags_of(base)
        if form == "untrained":
            return [] if f"untrained:{name}" in tags else [f"{setting}: not the random-init control of {name}"]
        if name not in tags:
            return [f"{setting}: not the paper's (no tag {name})"]
        return [f"{setting} is a part of {name}, the paper's is all of it"] if bracket and form == "tag" else []


def is_selector(value: Any) -> bool:
    """Return whether a setting of the paper names an input."""
    return isinstance(value, str) and value.startswith(SELECTORS)


def is_equal(ours: Any, paper_value: Any) -> bool:
    """Return whether two JSON values are the same setting: 1 equals 1.0, but True does not equal 1."""
    if isinstance(ours, list | tuple) and isinstance(paper_value, list | tuple):
        return len(ours) == len(paper_value) and all(map(is_equal, ours, paper_value))
    return isinstance(ours, bool) == isinstance(paper_value, bool) and bool(ours == paper_value)


def format_value_phrase(value: Any) -> str:
    """Return a setting's value for a sentence."""
    from chessreg.runs.spec import format_value

    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value_phrase(part)}" for name, part in value.items())
    return format_value(tuple(value) if isinstance(value, list) else value) or "''"
