"""`chessreg dataset`: add, split and export games and positions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import FilePath, Home, NameText, Numbers, add_json_option, pass_home, print_output
from chessreg.cli.noun import add_note_option, get_headings, group_of, save_note, to_percent
from chessreg.entities import load_entity
from chessreg.entities.base import read_entity_row
from chessreg.registry import names

if TYPE_CHECKING:
    from chessreg.entities.adding import AddedDataset

FILE = FilePath(path_type=Path)


class FileOrAddress(FilePath):
    """A file, as a Path, or the address of files on other machines, as a text."""

    name = "path"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from chessreg.games.datasets.remote import is_address

        return value if is_address(str(value)) else super().convert(value, param, ctx)


DATASET = load_entity("dataset")
dataset = group_of("dataset")


def name_option(function: Any) -> Any:
    return click.option("--name", type=NameText(), help="Name of the dataset. Left out: no name; use its id.")(function)


def make_filter_options(function: Any) -> Any:
    """Return options that select games by their tags: `time_control`, `rated`, …, the fields of a `GameFilter`."""
    options = (
        click.option(
            "--time-control",
            type=Numbers(str),
            default=(),
            help="Keep games of these time controls: Lichess's classes by base + 40 increments (ultrabullet, bullet, "
            "blitz, rapid, classical, correspondence), or clocks such as 180+2.  [default: all]",
        ),
        click.option(
            "--rated/--casual",
            default=None,
            help="Keep only Lichess's rated games, or only its casual games.  [default: both]",
        ),
        click.option(
            "--min-rating",
            type=click.IntRange(0),
            help="Keep only games whose players are both rated at least this. Left out: any rating.",
        ),
        click.option(
            "--max-rating",
            type=click.IntRange(0),
            help="Keep only games whose players are both rated at most this. Left out: any rating.",
        ),
        click.option(
            "--max-rating-difference",
            type=click.IntRange(0),
            help="Keep only games whose ratings differ by at most this. Left out: any difference.",
        ),
        click.option(
            "--termination",
            type=Numbers(str),
            default=(),
            help="Keep games with one of these Termination tags, such as normal,time forfeit.  [default: all]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def print_dataset(home: Home, dataset: AddedDataset, note: str | None = None) -> None:
    """Print a dataset that this command or an earlier one added. `note` is the text of a note that was added to it, or
    None."""
    from chessreg.entities.dataset import format_dataset_counts, get_dataset_content

    with home.session().database.read() as session:
        row = read_entity_row(session, "dataset", DATASET.table, dataset.id.hex)
        names_text = names.describe_names(session, "dataset", dataset.id)
    if not dataset.is_new:
        change = "only the note was added" if note else "nothing was added"
        click.echo(f"these bytes are already dataset {names_text}; {change}", err=True)
    content = get_dataset_content(row)
    print_output(home, {**row, "content": content, "created": dataset.is_new}, get_headings(DATASET))
    if not home.json:
        for line in format_dataset_counts(row):
            click.echo(line)
    if dataset.is_new and row["rejected"] and not home.json:
        click.echo(
            f"{row['rejected']:,} {content} were rejected: chessreg dataset show {dataset.id.hex[-6:]} --rejects",
            err=True,
        )


@dataset.command()
@click.argument("files", nargs=-1, metavar="FILE|ADDRESS…", type=FileOrAddress())
@name_option
@add_note_option
@click.option("--sample", is_flag=True, help="Add the games that come with chessreg instead of a file.")
@click.option(
    "--salvage",
    is_flag=True,
    help="Keep the games before the damage in a damaged file; a damaged bag is refused.",
)
@click.option(
    "--min-plies",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Skip games shorter than this, and positions after fewer plies.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="DATASET",
    help="Exclude games and positions that are in this dataset or part (NAME:PART), and positions of its games; "
    "repeatable. Left out: exclude nothing.",
)
@click.option(
    "--within",
    multiple=True,
    metavar="DATASET",
    help="Keep only positions whose game is in this dataset or part; repeatable. Left out: keep all.",
)
@click.option(
    "--rating-scale",
    type=click.Choice(["lichess", "stockfish", "fide"]),
    help="Rating scale of the Elo tags.  [default: from the Site and Event tags]",
)
@click.option("--licence", help="Licence of the games, such as CC0-1.0. Left out: not recorded.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Processes that read games, about 200 MB each.  [default: one per core, at most 16]",
)
@make_filter_options
@add_json_option
@pass_home
def add(
    home: Home,
    files: tuple[Path | str, ...],
    name: str | None,
    sample: bool,
    salvage: bool,
    min_plies: int,
    exclude: tuple[str, ...],
    within: tuple[str, ...],
    processes: int | None,
    **settings: Any,
) -> None:
    """Add files as one dataset: PGN, transcript CSV (plain or .zst, .gz, .bz2, .zip) or Parquet.

    An address (s3://, gs://, https:// or hf:datasets/USER/NAME/FILE, where * matches several files) is read over the
    network: text as it arrives, Parquet, bags and zips one file at a time through the folder for temporary files.
    Adding the same bytes with the same filters again does nothing. Games excluded by a filter, and games without the
    tags that it needs, are counted by reason. Games with illegal moves are listed with the dataset. A CSV has a column
    `transcript`, as in Karvonen's files of games; an incomplete last move is dropped. A Parquet file of games has a
    column `transcript` (SAN or UCI) or `movetext`, and columns named as PGN tags. A Parquet or CSV file with a column
    `fen`, a CSV of puzzles (FEN,moves,rating) and a ChessBench bag (.bag, .bagz; NAME@3_data.bag: all three shards)
    become a dataset of positions.

    \b
    Example: chessreg dataset add lichess-puzzles.csv --name puzzles
    Example: chessreg dataset add lichess_db_standard_rated_2013-01.pgn.zst --name jan
    Example: chessreg dataset add more.pgn --exclude jan --name unseen
    Example: chessreg dataset add jan.pgn --time-control bullet,blitz --min-rating 700 --name fast
    Example: chessreg dataset add positions.parquet --within jan --name decisions
    Example: chessreg dataset add behavioral_cloning_data.bag --name chessbench
    Example: chessreg dataset add "hf:datasets/USER/NAME/data/*.parquet" --name hub
    """
    from chessreg.cli.base import show_progress_line
    from chessreg.entities.adding import FileFilter, add_dataset, add_sample, check_dataset_files
    from chessreg.entities.fetched import read_fetch_record
    from chessreg.games.datasets.game_filter import GameFilter
    from chessreg.games.datasets.remote import list_input_files

    note = settings.pop("note")
    metadata = {name: settings.pop(name) for name in ("rating_scale", "licence")}
    game_filter = GameFilter(**settings)
    if sample == bool(files):
        raise click.UsageError("give files, or --sample")
    if sample and (exclude or within or game_filter.settings()):
        raise click.UsageError("--exclude, --within and filters of games apply to files, not to --sample")
    inputs = [input for file in files for input in list_input_files(file)]
    session = home.open_for_adding(needs=(*exclude, *within), check=lambda: check_dataset_files(inputs, salvage))
    first_input = inputs[0] if inputs else None
    record = read_fetch_record(home.store_path / "downloads", first_input) if isinstance(first_input, Path) else None
    with show_progress_line("dataset add", quiet=home.json) as on_progress:
        if sample:
            added_dataset = add_sample(session.database, session.store, name=name, on_progress=on_progress)
        else:
            added_dataset = add_dataset(
                session.database,
                session.store,
                inputs,
                FileFilter(min_plies, exclude, within, salvage, game_filter),
                name=name,
                **metadata,
                extra={"fetched": record} if record else None,
                processes=processes,
                on_progress=on_progress,
            )
    save_note(home, "dataset", added_dataset.id, note)
    print_dataset(home, added_dataset, note)


@dataset.command()
@click.argument("reference", metavar="DATASET")
@click.option("--parts", required=True, metavar="NAME=SHARE,…", help="Names and shares, such as train=0.5,test=0.5.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the hash.")
@add_json_option
@pass_home
def split(home: Home, reference: str, parts: str, seed: int) -> None:
    """Split a dataset into named parts by a seeded hash of the moves. Equal games are always in the same part.

    Positions of one game are in the same part; positions without a known game are split one by one.

    Commands accept a part as DATASET:NAME.

    \b
    Example: chessreg dataset split sample --parts fit=0.6,test=0.4 --seed 0
    """
    from chessreg.entities.dataset import split_dataset
    from chessreg.registry import read

    session = home.session()
    result = split_dataset(session.database, session.store, reference, parts, seed)
    rows = [read.get_row_values(part) for part in result.parts]
    if not home.json:
        rows = [
            {**row, "part": f"{reference}:{row['name']}", "share": to_percent(row["high"] - row["low"])} for row in rows
        ]
    print_output(home, rows, {"part": "part", "games": result.content, "share": "share %"})
    if not result.created:
        click.echo("these parts already exist; nothing has changed", err=True)
    for overlap in result.overlaps:
        contents = "move lists" if result.content == "games" else "different boards"
        click.echo(
            f"{overlap.part} and {overlap.other} share {overlap.games:,} {result.content} and "
            f"{overlap.move_lists:,} {contents}",
            err=True,
        )
    if result.outside:
        click.echo(f"{result.outside:,} {result.content} are in none of these parts", err=True)


@dataset.command()
@click.argument("reference", metavar="DATASET")
@click.argument("other", metavar="OTHER")
@add_json_option
@pass_home
def overlap(home: Home, reference: str, other: str) -> None:
    """Count the games and positions that a dataset or part shares with another.

    Games are compared by their moves. If one of the two holds positions, games are compared by their Lichess id. Two
    datasets of positions are also compared by board: pieces, side to move, castling rights and en passant.

    \b
    Example: chessreg dataset overlap sample:test sample:fit
    """
    from chessreg.entities.dataset import compare_datasets

    rows = [asdict(row) for row in compare_datasets(home.session().inputs, reference, other)]
    print_output(home, rows, ["what", "shared", "of", "percent"])


@dataset.command()
@click.argument("reference", metavar="DATASET")
@click.argument("file", required=False, metavar="[FILE]", type=FILE)
@click.option("--format", "format_", type=click.Choice(["bag", "bagz"]), help="bagz packs each record.  [default: bag]")
@click.option(
    "--coding",
    type=click.Choice(["behavioral_cloning", "state_value", "action_value"]),
    help="Values of a record: the best move, a win probability, or a move and a win probability.  "
    "[default: the most that the positions have]",
)
@click.option(
    "--token-file", "tokens", is_flag=True, help="Write games as a token file (.npz) instead, to train on elsewhere."
)
@click.option(
    "--heldout",
    metavar="DATASET",
    help="Games to evaluate on, which the model is not trained on; needed with --token-file. Left out: none.",
)
@click.option(
    "--encoding",
    "encoding_name",
    metavar="NAME",
    help="For --token-file: how games are written, such as uci-square-72.  [default: pgn-char-32]",
)
@click.option(
    "--games", type=click.IntRange(1), help="For --token-file: at most this many training games.  [default: all]"
)
@click.option(
    "--heldout-games",
    type=click.IntRange(1),
    help="For --token-file: at most this many held-out games.  [default: 1000]",
)
@click.option(
    "--positions",
    type=click.IntRange(0),
    help="For --token-file: held-out positions stored with their legal moves; a thousand take about 6 s.  "
    "[default: 2000]",
)
@add_json_option
@pass_home
def export(
    home: Home,
    reference: str,
    file: Path | None,
    format_: str | None,
    coding: Any,
    tokens: bool,
    **options: Any,
) -> None:
    """Write a dataset, or one part of it, to a file: positions for ChessBench, or games as token ids.

    Positions become FILE.bag or FILE.bagz. An added bag is reproduced byte for byte unless some of its rows were
    rejected or rewritten.

    With --token-file, games become FILE.npz: a zip of NumPy arrays, about 160 bytes per game, that numpy.load reads
    without chessreg. `tokens` (uint8) holds the training games end to end and `lengths` the number of tokens of each;
    `heldout_tokens` and `heldout_lengths` hold the held-out games; the other arrays hold positions of these with every
    legal move. `header` is JSON: the encoding, its sizes, the datasets. chessreg/models/token_file.py describes all.
    Duplicates and training games that are also held out are left out. `make gpu ARGS="--games FILE.npz"` trains on it.

    \b
    Example: chessreg dataset export puzzles puzzles.bag
    Example: chessreg dataset export lichess:train games.npz --token-file --heldout lichess:test
    """
    token_options = {name: value for name, value in options.items() if value is not None}
    if tokens:
        if format_ or coding:
            raise click.UsageError("--format and --coding apply to positions: leave them out with --token-file")
        export_tokens(home, reference, file, token_options)
        return
    if token_options:
        name = next(iter(token_options)).removesuffix("_name").replace("_", "-")
        raise click.UsageError(f"--{name} needs --token-file")
    from chessreg.games.datasets.bags import export_bag as write

    suffix = format_ or (file.suffix.lower().lstrip(".") if file else "bag")
    path = file or Path(f"{reference.replace(':', '-')}.{suffix}")
    if path.suffix.lower() != f".{suffix}":
        raise click.UsageError(f"{path} is not called .{suffix or 'bag or .bagz'}")
    inputs = home.session().inputs
    positions, part = inputs.positions(inputs.reference("dataset", reference))
    coding, count = write(positions, positions.rows(part), path, coding)
    print_output(home, {"file": str(path), "coding": coding, "records": count, "bytes": path.stat().st_size})


def export_tokens(home: Home, reference: str, file: Path | None, options: dict[str, Any]) -> None:
    """Write the token file of `dataset export --token-file` and print its counts."""
    from chessreg.encodings import get_encoding
    from chessreg.models.token_file import export_token_file as write

    if "heldout" not in options:
        raise click.UsageError(
            f"--token-file needs --heldout DATASET: `chessreg dataset split {reference} --parts train=0.98,test=0.02`, "
            f"then export {reference}:train with --heldout {reference}:test"
        )
    games_encoding = get_encoding(options.get("encoding_name", "pgn-char-32"))
    if games_encoding.content != "history":
        raise click.UsageError(
            f"--encoding {games_encoding.name} writes positions, a token file holds games: pgn-char-32"
        )
    path = file or Path(f"{reference.replace(':', '-')}.npz")
    inputs = home.session().inputs
    references = [inputs.reference("dataset", name) for name in (reference, options["heldout"])]
    (games, part), (heldout, heldout_part) = map(inputs.dataset, references)
    content = write(
        path,
        games_encoding,
        games,
        games.rows(part),
        heldout,
        heldout.rows(heldout_part),
        most=options.get("games"),
        most_heldout=options.get("heldout_games", 1000),
        positions=options.get("positions", 2000),
        source={"dataset": references[0], "heldout": references[1]},
    )
    counts = {name: content.source[name] for name in ("duplicates_left_out", "heldout_left_out")}
    print_output(
        home,
        {
            "file": str(path),
            "encoding": content.encoding,
            "games": len(content.lengths),
            "tokens": len(content.tokens),
            "heldout": len(content.heldout_lengths),
            "positions": len(content.position_item),
            **counts,
            "bytes": path.stat().st_size,
        },
    )


@dataset.command()
@click.argument("source", type=click.Choice(["lichess"]))
@click.argument("month")
@name_option
@click.option("--base-url", help="Mirror with the layout of https://database.lichess.org. Left out: that site.")
@click.option("--keep", is_flag=True, help="Keep the downloaded file in the store.")
@make_filter_options
@add_json_option
@pass_home
def fetch(
    home: Home, source: str, month: str, name: str | None, base_url: str | None, keep: bool, **filters: Any
) -> None:
    """Download a month of rated games, verify its checksum, and add it. An interrupted download continues.

    \b
    Example: chessreg dataset fetch lichess 2013-01 --name jan-2013
    Example: chessreg dataset fetch lichess 2013-01 --time-control bullet,blitz --name jan-2013-fast
    """
    from chessreg.cli.base import show_progress_line
    from chessreg.entities.adding import check_dataset_files, download_month, fetch_dataset
    from chessreg.games.datasets.game_filter import GameFilter

    game_filter = GameFilter(**filters)

    def add_month() -> None:
        with show_progress_line(f"{source} {month}", quiet=home.json) as on_progress:
            path = download_month(month, home.store_path / "downloads", base_url, on_progress)
        check_dataset_files([path])

    session = home.open_for_adding(check=add_month)
    with show_progress_line(f"{source} {month}", quiet=home.json) as on_progress:
        added_dataset = fetch_dataset(
            session.database,
            session.store,
            month,
            base_url=base_url,
            keep=keep,
            name=name,
            tags=game_filter,
            on_progress=on_progress,
        )
    print_dataset(home, added_dataset)


@dataset.command()
@click.option("--engine", type=click.Choice(["stockfish"]), default="stockfish", show_default=True)
@click.option("--games", type=click.IntRange(1), required=True, help="Number of games to play.")
@click.option(
    "--levels", type=Numbers(int), default="0-19", show_default=True, help="Skill levels that play each other."
)
@click.option(
    "--search-nodes",
    "nodes",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Nodes that Stockfish searches for each move.",
)
@click.option(
    "--max-plies",
    type=click.IntRange(2),
    default=140,
    show_default=True,
    help="Adjudicate games after this many plies.",
)
@click.option(
    "--opening-plies", type=click.IntRange(0), default=4, show_default=True, help="Random plies at the start."
)
@click.option(
    "--resign-share",
    type=click.FloatRange(0, 1),
    default=0.7,
    show_default=True,
    help="Share of the games in which a losing player resigns.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of openings, levels and colors.")
@click.option("--processes", type=click.IntRange(1), help="Games played at once.  [default: one per core]")
@click.option(
    "--pgn", type=FILE, help="Also write the games to this file (.pgn or .pgn.zst). Left out: only the dataset is made."
)
@name_option
@add_json_option
@pass_home
def generate(
    home: Home,
    engine: str,
    games: int,
    seed: int,
    processes: int | None,
    pgn: Path | None,
    name: str | None,
    **settings: Any,
) -> None:
    """Play games between an engine's levels from random openings, on all cores, and add them.

    The Elo tags hold the levels' published ratings, so the rating scale is stockfish's own.

    \b
    Example: chessreg dataset generate --games 500 --levels 0-5 --search-nodes 200 --name engines
    """
    from chessreg.cli.base import show_progress_line
    from chessreg.entities.adding import check_generation, generate_dataset
    from chessreg.games.engines.selfplay import SelfPlay

    self_play = SelfPlay(**settings)
    session = home.open_for_adding(check=lambda: check_generation(pgn))
    with show_progress_line(f"{engine} plays itself", quiet=home.json) as on_progress:
        added_dataset = generate_dataset(
            session.database,
            session.store,
            games,
            self_play,
            seed=seed,
            processes=processes,
            pgn=pgn,
            name=name,
            on_progress=on_progress,
        )
    print_dataset(home, added_dataset)
