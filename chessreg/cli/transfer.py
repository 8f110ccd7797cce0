"""`chessreg push`, `pull`, `merge` and `export`: data from machine to machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import FilePath, Group, Home, add_json_option, open_with_waiting_results, pass_home, print_output
from chessreg.named import format_count

if TYPE_CHECKING:
    from chessreg.entities.merge import MergePreview, MergeReport
    from chessreg.runs.transfer import TransferReport


@click.command()
@click.argument("references", metavar="RUN|DATASET|CHECKPOINT...", nargs=-1, required=True)
@click.option(
    "--to",
    "place",
    required=True,
    metavar="PLACE",
    help="A folder, a bucket (s3://bucket/prefix), or a repository of the Hugging Face hub (hf:USER/NAME).",
)
@click.option("--inputs", is_flag=True, help="Include all their inputs.")
@click.option(
    "--registry-rows",
    "rows",
    is_flag=True,
    help="Include the registry's rows, for `chessreg merge PLACE` (folders only).",
)
@click.option(
    "--dry-run", is_flag=True, help="List the files with their sizes, and a repository's card; change nothing."
)
@click.option("--private/--public", default=None, help="Visibility of a new repository of the hub.  [default: private]")
@add_json_option
@pass_home
def push(
    home: Home,
    references: tuple[str, ...],
    place: str,
    inputs: bool,
    rows: bool,
    dry_run: bool,
    private: bool | None,
) -> None:
    """Copy the bytes of runs, datasets and checkpoints to a place that other machines can read.

    With --registry-rows the folder contains all rows, and `chessreg merge` imports it. The saved state of an incomplete
    training is copied too: it continues on the machine that pulls it.

    On the hub, one checkpoint, dataset, probe run, vector run or SAE run becomes a repository that other tools load,
    with a card of its data, settings, results and commands. The token is that of `hf auth login` or HF_TOKEN. Pushing
    the same content again makes no commit.

    \b
    Example: chessreg push reference-board --to /mnt/share/chess --inputs
             chessreg push reference --to hf:USER/NAME --dry-run
    """
    from chessreg.errors import BadInputError
    from chessreg.folders import expand_path
    from chessreg.runs import transfer, unfinished
    from store.places import open_place as place_at

    database = open_with_waiting_results(home)
    session = home.session()
    if place.startswith("hf:"):
        if inputs or rows:
            raise BadInputError("--inputs and --registry-rows do not apply to the hub", "push each one separately")
        push_to_hub(home, references, place, private is not False, dry_run)
        return
    if private is not None:
        raise BadInputError("--private and --public apply to the hub only", "--to hf:USER/NAME")
    if rows and "://" in place:
        raise BadInputError("--rows needs a folder", "give --to FOLDER")
    folder = expand_path(place)
    target = str(folder / "store") if rows else place
    items = transfer.find_items(database, references, inputs=inputs)
    if dry_run:
        print_output(home, [{"what": item.what, "bytes": item.bytes} for item in items], ["what", "bytes"])
        click.echo(f"{len(items)} would be pushed, {sum(i.bytes for i in items):,} bytes", err=True)
        return
    remote = place_at(target, create=True)
    report = transfer.push_items(database, session.store, remote, items)
    states = unfinished.copy_states(database, session.store, remote, references)
    if rows:
        from chessreg.entities.merge import export_rows

        export_rows(database, folder / "registry.db", references)
    print_transfer(home, report, states, f"at {place}")


def push_to_hub(home: Home, references: tuple[str, ...], place: str, private: bool, dry_run: bool) -> None:
    """Push the one entity in `references` as the repository `place` (`hf:OWNER/NAME`) of the hub.

    `private` applies to a new repository. `dry_run` prints the files and the card instead.
    """
    import dataclasses

    from chessreg import publishing
    from chessreg.errors import BadInputError
    from chessreg.models import hub_repository

    address = hub_repository.HubAddress.parse(place)
    if address.pattern or address.revision:
        raise BadInputError(f"--to {place} has a revision or a path", f"--to {address}")
    if len(references) > 1:
        raise BadInputError(f"{len(references)} references for one repository", "push each to its own repository")
    session, [reference] = home.session(), references
    noun = publishing.find_published_noun(session, reference)
    repository_type = publishing.get_repository_type(noun)
    if address.type not in (None, repository_type):
        raise BadInputError(
            f"{address} is a {address.type} repository, but a {noun} needs a {repository_type} repository"
        )
    full_address = dataclasses.replace(address, type=repository_type)
    with publishing.make_repository(session, noun, reference, full_address) as repository:
        sizes = {
            name: path.stat().st_size for name, path in hub_repository.list_folder_files(repository.folder).items()
        }
        if dry_run:
            print_repository(home, str(full_address), sizes, repository.card)
            return
        if address.type is None and (other := hub_repository.find_other_type(full_address)) is not None:
            hint = (
                f"choose another name, or --to hf:{repository_type}s/{address.repository} for a repository next to it"
            )
            raise BadInputError(
                f"{address} is a {other} repository, but a {noun} needs a {repository_type} repository", hint
            )
        commit = hub_repository.push_folder(
            repository.folder, full_address, f"Push {noun} {reference}", private=private
        )
    if home.json:
        facts = {"repository": str(full_address), "url": commit.url, "commit": commit.commit, "created": commit.is_new}
        print_output(home, {**facts, "files": sizes, "changed": list(commit.changed_files)})
        return
    if not commit.changed_files:
        click.echo(f"nothing was committed: {commit.url} is up to date ({format_count(len(sizes), 'file')})", err=True)
        return
    sent_bytes = sum(sizes[name] for name in commit.changed_files)
    click.echo(
        f"{len(commit.changed_files)} of {len(sizes)} files, {sent_bytes:,} bytes, are now in {commit.url}", err=True
    )
    click.echo(f"commit {commit.commit}; to get it elsewhere: chessreg fetch {full_address}", err=True)


def print_repository(home: Home, repository: str, sizes: dict[str, int], card: str) -> None:
    """Print the card and the files that a push to `repository` would send. `sizes` are bytes by file name."""
    total = sum(sizes.values())
    if home.json:
        print_output(home, {"repository": repository, "files": sizes, "bytes": total, "card": card})
        return
    for name, size in sizes.items():
        click.echo(f"{size:>15,}  {name}")
    click.echo(f"\n{card}")
    click.echo(
        f"{format_count(len(sizes), 'file')}, {total:,} bytes, would be pushed to {repository}; nothing was sent",
        err=True,
    )


@click.command()
@click.argument("references", metavar="RUN|DATASET|CHECKPOINT...", nargs=-1, required=True)
@click.option(
    "--from",
    "place",
    metavar="PLACE",
    help="Folder or bucket to copy from. Left out: every place that the registry knows.",
)
@click.option("--inputs", is_flag=True, help="Include all their inputs.")
@add_json_option
@pass_home
def pull(home: Home, references: tuple[str, ...], place: str | None, inputs: bool) -> None:
    """Fetch the bytes of runs, datasets and checkpoints that are registered but not in the store. Each is verified.

    \b
    Example: chessreg pull reference-board --from /mnt/share/chess
    """
    from chessreg.runs import transfer, unfinished
    from store.places import open_place as place_at

    database = open_with_waiting_results(home)
    items = transfer.find_items(database, references, inputs=inputs)
    store, remote = home.session().store, place_at(place) if place else None
    report = transfer.pull_items(database, store, items, remote)
    states = unfinished.copy_states(database, remote, store, references) if remote else 0
    print_transfer(home, report, states, "here")


def print_transfer(home: Home, report: TransferReport, states: int, where: str) -> None:
    """Print the artifacts that were copied and their bytes. `where` ends the last line: `here` or `at PLACE`."""
    if home.json:
        facts: dict[str, Any] = {
            "moved": [{"digest": i.digest, "what": i.what, "bytes": i.bytes} for i in report.moved],
            "there_before": len(report.there),
            "bytes": report.bytes,
            "states": states,
        }
        print_output(home, facts)
        return
    for item in report.moved:
        click.echo(f"  {item.what}  {item.bytes:,} bytes", err=True)
    if states:
        click.echo(
            "  the saved state of a training" if states == 1 else f"  {states} saved states of trainings", err=True
        )
    before = f"; {len(report.there)} were {where} before" if report.there else ""
    click.echo(f"{len(report.moved)} now {where}, {report.bytes:,} bytes{before}", err=True)


@click.command()
@click.argument("other")
@click.option("--dry-run", is_flag=True, help="List the runs and conflicts that would be imported; change nothing.")
@add_json_option
@pass_home
def merge(home: Home, other: str, dry_run: bool) -> None:
    """Import the runs, results and annotations of another registry. Repeating it does nothing.

    OTHER is a registry (a file or a URL), a folder with one (`.chessreg`, or the output of `chessreg push
    --registry-rows`), or a folder of fragments. Results that differ from existing ones are listed by `chessreg runs
    conflicts`. Bytes are not copied; `chessreg pull` fetches them. A registry file with an earlier schema is read from
    an upgraded copy.

    \b
    Example: chessreg merge /mnt/gpubox/.chessreg
    """
    from chessreg.entities import merge as merging

    if dry_run:
        session = home.session()  # raises NotFoundError if the registry does not exist
        print_preview(home, merging.preview_merge(session.database, session.store, other))
        return
    session = home.open_for_adding(check=lambda: merging.check_merge_source(other))
    report = merging.merge_source(session.database, session.store, other)
    if home.json:
        print_output(home, report.as_dict())
        return
    print_merge_report(report)


def print_merge_report(report: MergeReport) -> None:
    """Print the numbers of new rows, repeated rows and conflicts after a merge."""
    if not report.facts and not report.results:
        click.echo("nothing new", err=True)
    for name, count in report.facts.items():
        click.echo(f"  {count:,} {name}", err=True)
    click.echo(
        f"{format_count(report.results, 'new result')} of {format_count(report.runs, 'run')}; "
        f"{report.repeated:,} were in this registry",
        err=True,
    )
    if report.conflicts:
        click.echo(f"{report.conflicts:,} differ from the rows of this registry: chessreg runs conflicts", err=True)


def print_preview(home: Home, preview: MergePreview) -> None:
    """Print the runs that would change, the conflicts, and the numbers of the report."""
    from chessreg.entities import merge as merging

    if home.json:
        print_output(home, {**preview._asdict(), "report": preview.report.as_dict()})
        return
    if preview.runs:
        rows = [
            {**row, "run": row["name"] or row["id"].hex[-6:], "change": merging.describe_run_change(row)}
            for row in preview.runs
        ]
        print_output(
            home, rows, {"run": "run", "kind": "kind", "host": "machine", "change": "change", "conflicts": "conflicts"}
        )
    for row in preview.conflicts:
        differences = ", ".join(
            f"{name} {local} in this registry, {remote} in the other"
            for name, (local, remote) in row["differs"].items()
        )
        key_text = " ".join(f"{name} {value}" for name, value in row["key"].items() if name != "run_id")
        click.echo(f"  {row['run'] or row['run_id'].hex[-6:]} {row['table_name']} {key_text}: {differences}", err=True)
    click.echo("this would be imported; nothing was changed:", err=True)
    print_merge_report(preview.report)


@click.group(cls=Group)
def export() -> None:
    """Write a checkpoint or runs for other tools."""


@export.command()
@click.argument("reference", metavar="CHECKPOINT")
@click.argument("folder", type=FilePath(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Round the weights to this type.  [default: as they are stored]",
)
@add_json_option
@pass_home
def checkpoint(home: Home, reference: str, folder: Path, dtype: Any) -> None:
    """Write a checkpoint as a new Hugging Face folder.

    The folder has config.json, model.safetensors, tokenizer files and README.md, a model card with the registry's facts
    about its data, training and results. transformers loads it with AutoModelForCausalLM and AutoTokenizer; a FEN
    encoder has a custom architecture.

    \b
    Example: chessreg export checkpoint reference ./reference-hf
    """
    from chessreg.entities.checkpoint import export_checkpoint
    from chessreg.model_card import format_model_card

    session = home.session()
    card = format_model_card(session, reference)
    result = export_checkpoint(session.database, session.store, reference, folder, dtype, card)
    files = {file.name: file.stat().st_size for file in sorted(result.iterdir())}
    print_output(
        home, {"folder": str(result.resolve()), "files": files, "bytes": sum(files.values())}, ["folder", "bytes"]
    )


@export.command()
@click.argument("words", metavar="[WORDS]", nargs=-1)
@click.option(
    "--to",
    "place",
    required=True,
    metavar="TRACKER:PLACE",
    help="mlflow:URI, wandb:FOLDER (offline), trackio:FOLDER or ro-crate:FOLDER.",
)
@click.option("--project", default="chessreg", show_default=True, help="Project or experiment in the tracker.")
@add_json_option
@pass_home
def runs(home: Home, words: tuple[str, ...], place: str, project: str) -> None:
    """Write runs for another experiment tracker.

    Written are settings, results with intervals, curves, artifacts and lineage. WORDS select runs as in `chessreg runs
    list`; left out: all runs that are not archived. Each tracker's library must be installed. A complete run that was
    exported before is skipped. An incomplete one is replaced if it has progressed. A RO-Crate is a new folder, with the
    result tables as Parquet.

    \b
    Example: chessreg export runs --to mlflow:sqlite:///mlflow.db
             chessreg export runs kind:probe --to wandb:./offline
             chessreg export runs tag:paper --to ro-crate:./crate
    """
    from chessreg.tracking import export_records

    open_with_waiting_results(home)
    report = export_records(home.session(), place, " ".join(words), project)
    if home.json:
        print_output(home, report)
    else:
        text = f"{report['new']:,} of {report['runs']:,} runs are new in {place}"
        click.echo(f"{text}, with {report['numbers']:,} numbers in all", err=True)
        if report["updated"]:
            click.echo(f"{report['updated']:,} were incomplete there and are updated", err=True)
        if report["remark"]:
            click.echo(report["remark"], err=True)
