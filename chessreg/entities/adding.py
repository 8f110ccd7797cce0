"""Add datasets (files, the bundled sample, a month of Lichess, engine games) and import downloads from the hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from chessreg.entities import register
from chessreg.entities.bundled import SAMPLE_GAMES
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.datasets.game_filter import EVERY_GAME, GameFilter
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_uuid
from chessreg.registry.tables.types import get_utc_now, require_lengths
from chessreg.runs.inputs import Inputs
from store.files import hash_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chessreg.entities.checkpoint import RegisteredCheckpoint
    from chessreg.games.datasets.dataset import DatasetReport
    from chessreg.games.datasets.positions import PositionFilter
    from chessreg.games.datasets.remote import InputFile
    from chessreg.games.engines.selfplay import SelfPlay
    from chessreg.games.foreign.chessbench import BenchFile
    from chessreg.games.foreign.download import Fetched
    from chessreg.models.hub import HubSource
    from store import Store, StoredArtifact


NOUN = "dataset"
MOST_PROCESSES = 16  # more would wait for the process that cuts the text into blocks and writes the rows
OnProgress = Callable[[float, str], None]


def ignore_progress(fraction: float, text: str) -> None:
    """Ignore a progress report."""


@dataclass(frozen=True)
class AddedDataset:
    """A registered dataset. `created` is False if the same bytes with the same filters were registered before."""

    id: UUID
    artifact: str
    is_new: bool


@dataclass(frozen=True)
class FileFilter:
    """Selects the games or positions of files that a dataset contains.

    Excludes games shorter than `min_plies` and positions after fewer plies. Excludes games with the moves of a game in
    `exclude`, and positions that share a board or a game with it. `within` keeps only positions of its games. `tags`
    keeps only games with matching tags. `salvage` keeps the games before the damage in a damaged file.
    """

    min_plies: int = 0
    exclude: Sequence[str] = ()
    within: Sequence[str] = ()
    salvage: bool = False
    tags: GameFilter = EVERY_GAME


def add_dataset(
    database: Database,
    store: Store,
    files: Sequence[InputFile],
    file_filter: FileFilter = FileFilter(),
    *,
    name: str | None = None,
    rating_scale: str | None = None,
    licence: str | None = None,
    extra: dict[str, Any] | None = None,
    processes: int | None = None,
    on_progress: OnProgress = ignore_progress,
) -> AddedDataset:
    """Read games (PGN, transcript CSV) or positions (Parquet, CSV with FENs) into the store and register them as one
    dataset.

    Excluded games and positions are counted. Adding the same bytes with the same filter again returns the existing
    dataset. Files behind addresses are read over the network, one after the other. They are the same dataset as their
    bytes on disk, and the report names their addresses. If `rating_scale` is None, it is inferred from the tags.
    `extra` is added to the report. At most `processes` processes read games, by default one per core up to
    MOST_PROCESSES, with the same result for any number.

    Raises NotFoundError and BadInputError as `build_dataset` does, and BadInputError for a name in use and for a rating
    scale or licence that is too long. Nothing is stored or recorded then.
    """
    from chessreg.games.datasets import bags, build, positions
    from chessreg.games.engines.pool import count_free_cores

    paths = [shard for file in files for shard in bags.list_bag_shards(file)]
    local = [path for path in paths if isinstance(path, Path)]
    addresses = [str(path) for path in paths if not isinstance(path, Path)]
    has_positions_only = has_positions(paths)
    if file_filter.within and not has_positions_only:
        raise BadInputError(
            "--within selects positions by their game, but these files hold games", "leave out --within"
        )
    if has_positions_only and file_filter.tags.settings():
        raise BadInputError(
            f"{file_filter.tags.words()[0]} selects games, but these files hold positions",
            "add the games with this option, then the positions with --within GAMES",
        )
    require_lengths(tables.Base.metadata.tables["dataset"], {"rating_scale": rating_scale, "licence": licence})
    register.check_registration(database, name)
    inputs = Inputs(database, store)
    excluded_games = {} if has_positions_only else read_move_hashes(inputs, file_filter.exclude)
    position_filter = build_position_filter(inputs, file_filter) if has_positions_only else positions.PositionFilter()
    if addresses:  # their digests are known when they have been read
        require_name_for_addresses(database, name, addresses)
        extra = {**(extra or {}), "addresses": addresses}
    else:
        digests = [hash_file(path) for path in local]
        filters = build.describe_filters(file_filter.min_plies, excluded_games, file_filter.tags)
        identity = (
            positions.identify_position_dataset(digests, position_filter)
            if has_positions_only
            else build.identify_dataset(digests, filters)
        )
        dataset_id = make_uuid(identity)
        existing_row = find_dataset(database, store, dataset_id)
        register.require_unused_name(database, NOUN, name, dataset_id)
        if existing_row is not None:
            with database.write() as session:
                register.assign_name(session, NOUN, existing_row.id, name)
            return existing_row

    def report_reading(done_bytes: int, total: int, games: int) -> None:
        on_progress(done_bytes / max(total, 1), f"{games:,} {'positions' if has_positions_only else 'games'}")

    with store.stage(NOUN) as folder:
        staging = folder / "made"
        if has_positions_only:
            report = positions.build_position_dataset(
                paths, staging, salvage=file_filter.salvage, position_filter=position_filter, on_progress=report_reading
            )
        else:
            report = build.build_dataset(
                paths,
                staging,
                salvage=file_filter.salvage,
                min_plies=file_filter.min_plies,
                exclude=excluded_games,
                game_filter=file_filter.tags,
                on_progress=report_reading,
                processes=processes or min(count_free_cores(), MOST_PROCESSES),
            )
        for file in sorted(staging.iterdir()):
            file.rename(folder / file.name)
        staging.rmdir()
        register.require_unused_name(database, NOUN, name, make_uuid(report.identity))
        scale = rating_scale or (None if has_positions_only else guess_rating_scale(folder))
        artifact = store.publish(folder)
    return record_dataset(database, artifact, report, name, scale, licence, extra or {})


def require_name_for_addresses(database: Database, name: str | None, addresses: Sequence[str]) -> None:
    """Raise BadInputError if `name` belongs to a dataset that was not read from these addresses."""
    if name is None:
        return
    with database.read() as session:
        rows = [session.get(tables.Dataset, id) for id in names.find_by_name(session, NOUN, name)]
        dataset_id = next(
            (row.id for row in rows if row is not None and row.report.get("addresses") == addresses), None
        )
        names.require_free_name(session, NOUN, dataset_id or "", name)


def read_move_hashes(inputs: Inputs, references: Sequence[str]) -> dict[str, np.ndarray]:
    """Return input reference → move hashes uint64 [n] of its games, for each dataset or part in `references`."""
    hashes = {}
    for name in references:
        reference = inputs.reference(NOUN, name)
        games, part = inputs.dataset(reference, NOUN)
        hashes[reference] = games.hashes[games.rows(part)]
    return hashes


def build_position_filter(inputs: Inputs, file_filter: FileFilter) -> PositionFilter:
    """Return a filter of positions by datasets or parts that hold games or positions.

    Raises BadInputError if the games of a dataset have no ids.
    """
    from chessreg.games.datasets.positions import PositionFilter, find_game_ids

    excluded_by_reference, excluded_boards, no_hashes = {}, {}, np.zeros(0, np.uint64)
    for name in dict.fromkeys((*file_filter.exclude, *file_filter.within)):
        reference = inputs.reference(NOUN, name)
        items, part = inputs.items(reference, NOUN)
        rows = items.rows(part)
        if items.content == "positions":
            games, boards = items.hashes[rows], items.position_hashes[rows]
            excluded_games = no_hashes
        else:
            known_ids, hashes = find_game_ids(items)
            excluded_games = games = hashes[np.isin(known_ids, rows)]
            boards = no_hashes
            if not len(games):
                raise BadInputError(f"no game of {name} has a Lichess id in its Site tag, so games cannot be matched")
        if name in file_filter.exclude:
            excluded_by_reference[reference] = excluded_games, boards
        if name in file_filter.within:
            excluded_boards[reference] = games
    return PositionFilter(file_filter.min_plies, excluded_by_reference, excluded_boards)


def check_dataset_files(files: Sequence[InputFile], salvage: bool = False) -> None:
    """Raise as `add_dataset` would for missing files, other formats and files without a legal game.

    Reads only the first part of a valid file.
    """
    from chessreg.games.datasets import bags, build

    paths = [shard for file in files for shard in bags.list_bag_shards(file)]
    if not has_positions(paths):
        for path in paths:
            build.check_game_file(path, salvage)


def has_positions(paths: Sequence[InputFile]) -> bool:
    """Return whether the files hold positions, not games. Raises BadInputError for a mixture or another format."""
    from chessreg.games.datasets.positions import open_positions
    from chessreg.games.datasets.transcripts import open_game_source

    are_positions = [open_positions(path) is not None for path in paths]
    for path, is_positions in zip(paths, are_positions, strict=True):
        if not is_positions:
            open_game_source(path)
    if any(are_positions) and not all(are_positions):
        games = next(path for path, is_positions in zip(paths, are_positions, strict=True) if not is_positions)
        raise BadInputError(f"{games} holds games, but other files hold positions", "add them as two datasets")
    return any(are_positions)


def find_dataset(database: Database, store: Store, dataset_id: UUID) -> AddedDataset | None:
    """Return the dataset with this id if it is registered and its bytes are in this store, else None."""
    with database.read() as session:
        row = session.get(tables.Dataset, dataset_id)
    return AddedDataset(row.id, row.artifact, False) if row is not None and store.exists(row.artifact) else None


def record_dataset(
    database: Database,
    artifact: StoredArtifact,
    report: DatasetReport,
    name: str | None,
    rating_scale: str | None,
    licence: str | None,
    extra: dict[str, Any],
) -> AddedDataset:
    """Insert the rows of a published dataset in one transaction.

    `extra` is added to the stored report. If the dataset is registered already, only a lost artifact is replaced.
    """
    dataset_id = make_uuid(report.identity)
    with database.write() as session:
        register.record_artifact(session, artifact)
        dataset = session.get(tables.Dataset, dataset_id)
        if dataset is None:
            session.add(
                tables.Dataset(
                    id=dataset_id,
                    identity=report.identity,
                    artifact=artifact.digest,
                    source=", ".join(source.name for source in report.sources),
                    games=report.games,
                    plies=report.plies,
                    duplicates=report.duplicates,
                    rejected=sum(report.rejected.values()),
                    skipped=sum(report.skipped.values()),
                    rating_scale=rating_scale,
                    licence=licence,
                    report=asdict(report) | extra,
                    created_at=get_utc_now(),
                )
            )
            session.flush()
        elif dataset.artifact != artifact.digest:  # the old bytes were lost; the new artifact replaces them
            dataset.artifact = artifact.digest
        register.assign_name(session, NOUN, dataset_id, name)
    return AddedDataset(dataset_id, artifact.digest, dataset is None)


def guess_rating_scale(folder: Path) -> str | None:
    """Return the rating scale of the Elo tags, inferred from the Site and Event tags of the rated games.

    Returns None if the games disagree or fewer than half of them have such tags.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from chessreg.games.datasets.dataset import GAMES_FILE
    from chessreg.games.engines.selfplay import EVENT

    votes = {"lichess": 0, "stockfish": 0, "other": 0}
    rated_games = 0
    for batch in pq.ParquetFile(folder / GAMES_FILE).iter_batches(columns=["site", "event", "white_elo", "black_elo"]):
        games_with_elo = batch.filter(pc.or_(pc.is_valid(batch["white_elo"]), pc.is_valid(batch["black_elo"])))
        rated_games += len(games_with_elo)
        site, event = pc.fill_null(games_with_elo["site"], ""), pc.fill_null(games_with_elo["event"], "")
        lichess = pc.match_substring(site, "lichess.org")
        is_lichess_event = pc.equal(event, EVENT)
        votes["lichess"] += pc.sum(lichess).as_py() or 0
        votes["stockfish"] += pc.sum(is_lichess_event).as_py() or 0
        other_site = pc.and_(pc.not_equal(site, ""), pc.invert(pc.or_(lichess, is_lichess_event)))
        votes["other"] += pc.sum(other_site).as_py() or 0
    best_scale = max(votes, key=lambda scale: votes[scale])
    is_certain = votes[best_scale] == sum(votes.values()) and 2 * votes[best_scale] >= rated_games > 0
    return best_scale if is_certain and best_scale != "other" else None


def add_sample(
    database: Database, store: Store, *, name: str | None = "sample", on_progress: OnProgress = ignore_progress
) -> AddedDataset:
    """Add the bundled sample as the dataset `name`: games between levels of Stockfish.

    `on_progress(fraction, text)` reports progress. Raises NotFoundError if the sample is not installed.
    """
    with as_file(files("chessreg") / "data" / SAMPLE_GAMES) as path:
        if not path.is_file():
            raise NotFoundError(
                "the sample games are missing from this installation of chessreg", "chessreg dataset generate"
            )
        return add_dataset(database, store, [path], name=name, licence="CC0-1.0", on_progress=on_progress)


def fetch_dataset(
    database: Database,
    store: Store,
    month: str,
    *,
    base_url: str | None = None,
    keep: bool = False,
    name: str | None = None,
    tags: GameFilter = EVERY_GAME,
    on_progress: OnProgress = ignore_progress,
) -> AddedDataset:
    """Download a month of Lichess games, verify its checksum, and add the games that match `tags`.

    An interrupted download stays in the store's `downloads` folder and is resumed by the next call. After registration
    the file is removed unless `keep`.
    """
    from chessreg.games.foreign import lichess

    lichess.format_month_name(month)  # raises before the registry or the network is used
    register.check_registration(database, name)
    path = download_month(month, store.root / "downloads", base_url, on_progress)
    dataset = add_dataset(
        database,
        store,
        [path],
        FileFilter(tags=tags),
        name=name,
        licence="CC0-1.0",
        rating_scale="lichess",
        on_progress=on_progress,
    )
    if not keep:
        path.unlink()
    return dataset


def download_month(
    month: str, downloads: Path, base_url: str | None = None, on_progress: OnProgress = ignore_progress
) -> Path:
    """Download a month of Lichess games into `downloads`, resuming an interrupted download, and return the file.

    Returns at once if the file exists. Needs no registry. Raises the errors of `games.foreign.lichess.fetch_month`.
    """
    from chessreg.games.foreign import lichess

    return lichess.fetch_month(month, downloads, base_url or lichess.BASE_URL, make_download_callback(on_progress))


def make_download_callback(on_progress: OnProgress) -> Callable[[int, int | None], None]:
    """Return a download callback (bytes done, bytes in total or None) that reports a fraction and a text to
    `on_progress`.
    """
    return lambda done_bytes, total: on_progress(done_bytes / total if total else 0.0, f"{done_bytes >> 20:,} MiB")


def generate_dataset(
    database: Database,
    store: Store,
    games: int,
    settings: SelfPlay,
    *,
    seed: int = 0,
    processes: int | None = None,
    pgn: Path | None = None,
    name: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> AddedDataset:
    """Play games between levels of Stockfish and add them. If `pgn` is given, also write them there (.zst: compressed).

    Raises NotFoundError if Stockfish is not installed, BadInputError if `pgn` exists.
    """
    from chessreg.games.engines.opponents import ELO_SOURCE, RATING_SCALE, identify_engine
    from chessreg.games.engines.selfplay import generate_games

    check_generation(pgn)
    register.check_registration(database, name)
    register.require_unused_name(database, NOUN, name)
    engine = identify_engine()
    made_by = {"engine": engine.name, "version": engine.version, "sha256": engine.sha256, "ratings": ELO_SOURCE}
    provenance = {"games": games, "seed": seed, **asdict(settings), **made_by}
    with store.stage("pgn") as scratch:
        path = scratch / (pgn.name if pgn else "generated.pgn.zst")
        with open_text_writer(path) as file:
            for number, game in enumerate(generate_games(games, settings, seed=seed, processes=processes), 1):
                file.write(game.pgn + "\n")
                on_progress(number / games, f"{number:,} of {games:,} games")
        dataset = add_dataset(
            database, store, [path], name=name, rating_scale=RATING_SCALE, extra={"generated": provenance}
        )
        if pgn is not None:
            shutil.move(path, pgn)
        shutil.rmtree(scratch)
    return dataset


def check_generation(pgn: Path | None) -> None:
    """Raise as `generate_dataset` would if Stockfish is not installed or `pgn` is not writable."""
    from chessreg.games.engines.opponents import find_stockfish

    if pgn is not None and pgn.exists():
        raise BadInputError(f"{pgn} exists already", "choose another file name")
    if pgn is not None and not pgn.absolute().parent.is_dir():
        raise NotFoundError(f"the folder {pgn.absolute().parent} does not exist")
    find_stockfish()


@contextmanager
def open_text_writer(path: Path) -> Iterator[IO[str]]:
    """Open a new text file for writing, compressed if its name ends in .zst."""
    if path.suffix != ".zst":
        with path.open("w", encoding="utf-8") as text_file:
            yield text_file
        return
    import zstandard

    with zstandard.open(path, "w", cctx=zstandard.ZstdCompressor(level=19), encoding="utf-8") as compressed_file:
        yield compressed_file


def download_source(
    source: HubSource | BenchFile,
    downloads: Path,
    *,
    file: str | None = None,
    revision: str = "main",
    endpoint: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Fetched:
    """Download a source into `downloads`, resuming an interrupted download. Needs no registry.

    Raises the errors of `games.foreign.download.download_file`, and BadInputError for a `revision` of a source without
    revisions.
    """
    from chessreg.games.foreign import chessbench
    from chessreg.models import hub

    report = make_download_callback(on_progress)
    if not isinstance(source, chessbench.BenchFile):
        return hub.fetch_hub_file(
            source, downloads, file=file, revision=revision, endpoint=endpoint, on_progress=report
        )
    if revision != "main":
        raise BadInputError(f"{source.name} has no revisions", "leave out --revision")
    return chessbench.fetch_bench_file(source, downloads, file=file, endpoint=endpoint, on_progress=report)


def check_downloaded_file(source: HubSource | BenchFile, path: Path) -> None:
    """Raise the error of `chessreg fetch` and `dataset fetch` for a download that is not a checkpoint or has no
    legal game. Registers nothing."""
    from chessreg.models import importers

    if source.holds == "checkpoint":
        importers.check_import(path)
    else:
        check_dataset_files([path])


def fetch_source(
    database: Database,
    store: Store,
    source: HubSource | BenchFile,
    *,
    file: str | None = None,
    revision: str = "main",
    endpoint: str | None = None,
    name: str | None = None,
    keep: bool = False,
    downloaded_file: Fetched | None = None,
    on_progress: OnProgress = ignore_progress,
) -> RegisteredCheckpoint | AddedDataset:
    """Download a source and register its content: a checkpoint, or a dataset of games or positions.

    An interrupted download stays in the store's `downloads` folder and is resumed by the next call. After registration
    the file is removed unless `keep`. The checkpoint or dataset records address, commit and SHA-256 of the file.
    `downloaded_file` is a finished download, which is used instead. Raises as downloading and importing do. Nothing is
    registered then.
    """
    from chessreg.games.foreign import chessbench

    register.check_registration(database, name)
    noun = "checkpoint" if source.holds == "checkpoint" else "dataset"
    file_name = name or (source.default_name if file in (None, source.file) else None)
    downloaded_file = downloaded_file or download_source(
        source,
        store.root / "downloads",
        file=file,
        revision=revision,
        endpoint=endpoint,
        on_progress=on_progress,
    )
    result: RegisteredCheckpoint | AddedDataset
    if noun == "checkpoint":
        result = import_checkpoint(
            database, store, downloaded_file.path, name=file_name, fetch_record=downloaded_file.as_json()
        )
    else:
        result = add_dataset(
            database,
            store,
            [downloaded_file.path],
            name=file_name,
            rating_scale="lichess" if source.holds == "games" else None,
            licence=chessbench.LICENCE if source.holds == "positions" else None,
            extra={"fetched": downloaded_file.as_json()},
            on_progress=on_progress,
        )
    if not keep:
        downloaded_file.path.unlink()
    return result
