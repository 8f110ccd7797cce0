"""Files fetched from any repository of the hub: those that chessreg reads, and the command that imports them.

They are in the store's folder `downloads/hf/REPOSITORY/COMMIT/`. The record of the download is next to that folder,
where no file of the repository can be. Imports from the folder store the record with the new row.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from chessreg.errors import BadInputError, ChessregError, get_first_line
from chessreg.games.foreign.download import Progress, compute_digest
from chessreg.masking import mask
from chessreg.models import hub_repository
from chessreg.models.hub import get_endpoint
from chessreg.models.hub_repository import HubAddress, HubRepository, RepositoryFile, describe_paths
from chessreg.terminal import make_visible
from store.files import write_synced

Content = Literal["model", "checkpoint", "sae", "probe", "vector", "dataset"]
SAE_FILES = ({"cfg.json", "sae_weights.safetensors"}, {"config.json", "ae.pt"})
PROBE_FILES = re.compile(r"\.probe\.safetensors$|_probe_\w*\.(pth|pt)$|(^|/)to_\w+/.*layer-\d+.*\.safetensors$")
VECTOR_FILES = re.compile(r"\.vector\.safetensors$|\.npy$|activations\.pt$")
CHECKPOINT_FILES = re.compile(r"\.(pt|pth|ckpt|npz|onnx|pb\.gz)$")
DATASET_FILES = re.compile(
    r"\.(pgn|csv|zip)(\.(zst|gz|bz2))?$|\.(parquet|bag|bagz)$|\.bagz?-\d+-of-\d+$", re.IGNORECASE
)
MODEL_WEIGHTS = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)$")
MODEL_FILES = re.compile(r"[^/]*\.(json|txt|model|md)$|(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)$")


class ContentGroup(NamedTuple):
    """Files of a repository that one command imports.

    `folder` is the folder that contains them: "" for the top of the repository, None if they are in several.
    """

    content: Content
    paths: tuple[str, ...]
    folder: str | None = None


class FetchedContent(NamedTuple):
    """A description of fetched files, and the command that imports them. An empty command: they cannot be imported."""

    what: str
    command: str


@dataclass(frozen=True)
class FetchedRepository:
    """A repository's files on this machine, with a description of each group."""

    repository: HubRepository
    folder: Path
    files: tuple[str, ...]
    contents: tuple[FetchedContent, ...]


# -- before the download ---------------------------------------------------------------------------------------------


def group_files(paths: Sequence[str]) -> list[ContentGroup]:
    """Return the files that chessreg may read, by their names: models and SAEs by folder, other files by kind.

    >>> [group.content for group in group_files(["config.json", "model.safetensors", "games/a.pgn", "games/b.pgn"])]
    ['model', 'dataset']
    """
    from chessreg.models.importers.onnx_graph import GRAPH_FILES

    by_folder: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        folder, _, name = path.rpartition("/")
        by_folder[folder].add(name)
    groups, remaining_paths = [], set(paths)
    for folder, names in sorted(by_folder.items()):
        sae = next((files for files in SAE_FILES if files <= names), None)
        if sae is not None:
            groups.append(make_group("sae", folder, sae))
        elif "config.json" in names and any(map(MODEL_WEIGHTS.match, names)):
            safe = any(name.endswith(".safetensors") for name in filter(MODEL_WEIGHTS.match, names))
            model_files = {
                name for name in names if MODEL_FILES.fullmatch(name) and not (safe and name.endswith(".bin"))
            }
            groups.append(make_group("model", folder, model_files))
        elif "config.json" in names and (graph := next((name for name in GRAPH_FILES if name in names), None)):
            model_files = {name for name in names if MODEL_FILES.fullmatch(name) or name.startswith(graph)}
            groups.append(make_group("model", folder, model_files))
        else:
            continue
        remaining_paths -= {f"{folder}/{name}".lstrip("/") for name in names if not DATASET_FILES.search(name)}
    kinds: tuple[tuple[Content, re.Pattern[str]], ...] = (
        ("probe", PROBE_FILES), ("vector", VECTOR_FILES), ("checkpoint", CHECKPOINT_FILES), ("dataset", DATASET_FILES),
    )  # fmt: skip
    for content, pattern in kinds:
        matching_paths = sorted(path for path in remaining_paths if pattern.search(path))
        remaining_paths -= set(matching_paths)
        if matching_paths:
            groups.append(ContentGroup(content, tuple(matching_paths)))
    return groups


def make_group(content: Content, folder: str, names: set[str]) -> ContentGroup:
    return ContentGroup(content, tuple(sorted(f"{folder}/{name}".lstrip("/") for name in names)), folder)


def choose_files(repository: HubRepository) -> list[RepositoryFile]:
    """Return the files to download: the matches of the address's pattern, else all files that chessreg may read.

    A model at the top of a repository excludes weights elsewhere, such as copies for other programs. Raises
    NotFoundError if the pattern fits no file, BadInputError for a repository without such files or with several models.
    """
    address = repository.address
    if address.pattern:
        return hub_repository.select_files(repository, address.pattern)
    groups = group_files([file.path for file in repository.files])
    if any(group.content == "model" and group.folder == "" for group in groups):
        groups = [group for group in groups if group.content not in ("model", "checkpoint") or group.folder == ""]
    models = [name for group in groups for name in list_weight_names(group)]
    if len(models) > 1:
        raise BadInputError(
            f"{address} has {len(models):,} models: {describe_paths(models)}",
            f"name one, such as {address}/{make_visible(models[0][:100])}",
        )
    paths = {path for group in groups for path in group.paths}
    if not paths:
        summary = describe_paths([file.path for file in repository.files])
        raise BadInputError(
            f"{address} has no model, SAE, probe, vector or games that chessreg reads, but {summary}",
            f"to download files anyway: chessreg fetch '{address}/*'",
        )
    return [file for file in repository.files if file.path in paths]


def list_weight_names(group: ContentGroup) -> Sequence[str]:
    """Return the folder of a model, or each file of weights; nothing for other content."""
    if group.content == "model":
        return [group.folder or "."]
    return group.paths if group.content == "checkpoint" else ()


# -- the download ----------------------------------------------------------------------------------------------------


def fetch_repository(
    address: HubAddress, downloads: Path, *, endpoint: str | None = None, on_progress: Progress | None = None
) -> FetchedRepository:
    """Download the files that `address` selects into `downloads`, and describe them. Needs no registry.

    `endpoint` is another hub than Hugging Face's. An interrupted download resumes. Raises the errors of
    `hub_repository.list_repository`, `choose_files` and `hub_repository.download_files`.
    """
    repository = hub_repository.list_repository(address, endpoint)
    files = choose_files(repository)
    folder = get_fetch_root(downloads) / name_repository_folder(repository.address) / repository.commit
    paths = hub_repository.download_files(repository, files, folder, endpoint=endpoint, on_progress=on_progress)
    record = {
        "repository": str(repository.address),
        "commit": repository.commit,
        "url": mask(f"{repository.address.format_url(get_endpoint(endpoint))}/tree/{repository.commit}"),
    }
    write_synced(get_record_path(folder), json.dumps(record).encode())
    names = [path.relative_to(folder).as_posix() for path in paths]
    contents = [one for group in group_files(names) for one in describe_group(group, folder)]
    return FetchedRepository(repository, folder, tuple(names), tuple(contents))


def get_fetch_root(downloads: Path) -> Path:
    """Return the folder of the downloads from repositories."""
    return downloads / "hf"


def name_repository_folder(address: HubAddress) -> str:
    """Return the name of a repository's folder."""
    return f"{address.type}s--{address.repository.replace('/', '--')}"


def get_record_path(folder: Path) -> Path:
    """Return the path of the record of a commit's folder."""
    return folder.with_name(f"{folder.name}.json")


def read_fetch_record(downloads: Path, path: Path) -> dict[str, Any] | None:
    """Return the repository, commit and web page of a file or folder that `fetch_repository` downloaded, else None.

    A file also has its SHA-256.
    """
    try:
        parts = path.resolve().relative_to(get_fetch_root(downloads).resolve()).parts
    except ValueError:
        return None
    if len(parts) < 2:
        return None
    record = get_record_path(get_fetch_root(downloads) / parts[0] / parts[1])
    if not record.is_file():
        return None
    content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    content["url"] = "/".join([content["url"], *parts[2:]])
    return {**content, "sha256": compute_digest(path)} if path.is_file() else content


# -- after the download ----------------------------------------------------------------------------------------------


def describe_group(group: ContentGroup, folder: Path) -> list[FetchedContent]:
    """Return the description of a group. Its files are opened as their import does, without running their code."""
    paths = [folder / path for path in group.paths]
    place = folder / group.folder if group.folder else folder
    if group.content == "model":
        return [describe_model(place)]
    if group.content == "checkpoint":
        return [describe_model(path) for path in paths]
    if group.content == "sae":
        return [describe_files("SAE", [place], check_fetched_sae, "chessreg import sae {} --checkpoint MODEL")]
    if group.content == "probe":
        return [describe_files("probe file", paths, check_fetched_probe, "chessreg import probe {} --checkpoint MODEL")]
    if group.content == "vector":
        return [
            describe_files("vector file", paths, check_fetched_vector, "chessreg import vector {} --checkpoint MODEL")
        ]
    return describe_datasets(paths)


def describe_model(path: Path) -> FetchedContent:
    """Return the description of a folder or file of weights."""
    from chessreg.models.importers.registry import check_import, recognize_format
    from chessreg.models.importers.source import open_checkpoint

    try:
        check_import(path)
        format_name = recognize_format(open_checkpoint(path)).name
    except (ChessregError, OSError) as error:
        return FetchedContent(describe_refusal(path, error), "")
    return FetchedContent(f"a {format_name} model", f"chessreg import checkpoint {shlex.quote(str(path))} --name NAME")


def describe_files(noun: str, paths: Sequence[Path], check: Callable[[Path], None], command: str) -> FetchedContent:
    """Return the description of `paths`, files of the kind `noun`, with the command that imports them.

    `check` raises an error for an unsuitable file, and `{}` in `command` stands for the paths. The description of an
    unsuitable file is the reason why it cannot be imported.
    """
    for path in paths:
        try:
            check(path)
        except (ChessregError, OSError) as error:
            return FetchedContent(describe_refusal(path, error), "")
    description = f"a {noun}" if len(paths) == 1 else f"{len(paths):,} {noun.replace('file', 'files', 1)}"
    return FetchedContent(description, command.format(shlex.join(map(str, paths))))


def describe_refusal(path: Path, error: Exception) -> str:
    """Return the reason why fetched files cannot be imported, as one line."""
    message = error.message if isinstance(error, ChessregError) else get_first_line(error)
    return f"not importable: {message if path.name in message else f'{path.name}: {message}'}"


def check_fetched_sae(path: Path) -> None:
    """Raise the import's error unless the folder of `path` has an SAE that can be imported."""
    from chessreg.models.sae_files import read_sae_folder

    read_sae_folder(path)


def check_fetched_probe(path: Path) -> None:
    """Raise BadInputError if a file is not a probe in a supported format."""
    from chessreg.models.importers import davis_probes, direction_files, directions, source

    if not source.is_safetensors(path):
        directions.read_karvonen_probe(path)
    elif direction_files.read_own_probe(path, path.name) is None:
        davis_probes.read_davis_probe(path, str(path))


def check_fetched_vector(path: Path) -> None:
    """Raise BadInputError if a file is not a steering vector in a supported format."""
    from chessreg.models.importers import direction_files, directions, source

    if not source.is_safetensors(path) or direction_files.read_own_vector(path, path.name) is None:
        directions.read_karvonen_vector(path)


def describe_datasets(paths: Sequence[Path]) -> list[FetchedContent]:
    """Return the description of files of data: games, positions, or the reason why a file has neither."""
    from chessreg.entities.adding import check_dataset_files, has_positions

    paths_by_format: defaultdict[str, list[Path]] = defaultdict(list)
    refusals: list[FetchedContent] = []
    for path in paths:
        try:
            check_dataset_files([path])
            paths_by_format["positions" if has_positions([path]) else "games"].append(path)
        except (ChessregError, OSError) as error:
            refusals.append(FetchedContent(describe_refusal(path, error), ""))
    datasets = [
        FetchedContent(
            f"{len(files):,} {'file' if len(files) == 1 else 'files'} of {content}",
            f"chessreg dataset add {shlex.join(map(str, files))} --name NAME",
        )
        for content, files in paths_by_format.items()
    ]
    more = [FetchedContent(f"{len(refusals) - 3:,} other files are not importable", "")] if len(refusals) > 3 else []
    return [*datasets, *refusals[:3], *more]
