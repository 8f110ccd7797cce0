"""The cards of repositories on the Hugging Face hub, as Markdown from the registry's lineage and results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from chessreg.entities import load_entity
from chessreg.entities.base import read_entity_row, read_entity_rows
from chessreg.entities.dataset import format_dataset_counts, get_dataset_content
from chessreg.entities.reproduce import build_step, list_steps, write_script_lines
from chessreg.masking import mask
from chessreg.model_card import format_data_table, format_licence, format_model_card
from chessreg.queries import run_query
from chessreg.queries.render import escape_markdown, format_markdown
from chessreg.registry import lineage, names, tables

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.models.hub_repository import HubAddress
    from chessreg.session import Session

RESULTS = {
    "probe": ("best probe layers", "probe accuracy by layer", "probe f1 by class", "rating error by layer"),
    "vector": ("vectors by layer",),
    "sae": ("sae reconstruction",),
}
"""Queries whose rows of this run are in its card."""
FILES = {
    "probe": "The file `layer-N.probe.safetensors` has the weights of one layer: `weight` [d_model, squares, classes], "
    "so that logits[square, class] = residual · weight[:, square, class]. The header's entry `chessreg` has the hook "
    "point, the label and the facts about the fit.",
    "vector": "Each file `layer-N.vector.safetensors` has one direction of the residual stream, `difference_vector` "
    "[d_model], and its two sides if it is a difference. The header's entry `chessreg` has the hook point and the "
    "source.",
    "sae": "Each folder has one sparse autoencoder in the layout of SAELens, named by its hook point and expansion.",
}
SYSTEM_PATHS = ("/bin/sh", "/dev/null")  # of every script
FOLDER = re.compile(r"(?<![\w.:/~-])(?:~|\.{1,2})?/(?:[^\s/'\"`|]+/)*(?P<name>[^\s/'\"`|]+)")


def format_card_of_checkpoint(session: Session, reference: str, address: HubAddress) -> str:
    """Return the model card of a checkpoint in a repository. Raises the errors of `format_model_card`."""
    return hide_private_text(session, format_model_card(session, reference, address))


def format_card_of_dataset(
    session: Session, reference: str, address: HubAddress, rows: int, files: Sequence[str]
) -> str:
    """Return the card of a dataset, or of a part (NAME:PART) with `rows` rows, in the Parquet files `files`."""
    name, _, part = reference.partition(":")
    with session.database.read() as sql:
        row = read_entity_row(sql, "dataset", tables.Dataset, name)
        node = lineage.Node("dataset", row["id"].hex)
        dataset_name = row["name"] or row["id"].hex[-6:]
        step = build_step(sql, node, row["name"])
    content = get_dataset_content(row)
    report = row["report"]
    total = row["plies" if content == "positions" else "games"]
    description = f"{rows:,} {content}" + (f", the part {part} of the {total:,} of {dataset_name}" if part else "")
    matter = ["tags: [chess, chessreg]", *format_licence(row["licence"])]
    matter += ["configs:"]
    for file in files:
        matter += [f"- config_name: {Path(file).stem}", f"  data_files: {file}"]
    rating = row["rating_scale"] or "not recorded"
    dates = [date for date in (report.get("first_date"), report.get("last_date")) if date]
    licence = f" --licence {shlex.quote(row['licence'])}" if row["licence"] else ""
    name = shlex.quote(f"{dataset_name}-{part}" if part else dataset_name)
    facts = [f"{description}. Ratings: {rating}. Licence: {escape_markdown(row['licence'] or 'not recorded')}."]
    facts += [f"Dates: {' to '.join(dict.fromkeys(dates))}."] if dates else []
    facts += [f"{line}." for line in format_dataset_counts(row)]
    if "puzzles.parquet" in files:
        facts.append("`moves` of a puzzle begins with the null move `0000`: the position is the one to solve.")
    loader_arguments = f'"{address.repository}", "{Path(files[0]).stem}"'
    code = [f"chessreg fetch {address}", f"chessreg dataset add {' '.join(files)} --name {name}{licence}"]
    parts = [
        "\n".join(["---", *matter, "---"]),
        f"# {escape_markdown(dataset_name)}{f', part {escape_markdown(part)}' if part else ''}",
        "\n".join(f"- {escape_markdown(fact)}" for fact in facts),
        "## Use",
        format_block("sh", code),
        format_block("python", ["from datasets import load_dataset", "", f"data = load_dataset({loader_arguments})"]),
        "## Source",
        format_data_table([row]),
        "This script adds the dataset in an empty folder:",
        format_block("sh", write_script_lines([step], session.store)),
    ]  # fmt: skip
    return hide_private_text(session, "\n\n".join(filter(None, parts)) + "\n")


def format_card_of_run(session: Session, noun: str, reference: str, address: HubAddress) -> str:
    """Return the card of a run's probes, vectors or SAEs. `reference` is the run's input reference."""
    run_id = session.inputs.run(reference).id
    entity = load_entity(noun)
    with session.database.read() as sql:
        rows = entity.rows(sql, run_id.hex)
        steps = list_steps(sql, run_id)
        data = list_run_data(sql, steps)
        run_name = names.read_name(sql, "run", run_id) or run_id.hex[-6:]
    licences = {row["licence"] for row in data}
    library = "saelens" if noun == "sae" else "chessreg"
    matter = [f"library_name: {library}", "tags: [chess, chessreg, mechanistic-interpretability]"]
    matter += format_licence(licences.pop() if len(licences) == 1 else None)
    model = next((row.get("model") or row.get("checkpoint") for row in rows), None) or "a model without a name"
    parts = [
        "\n".join(["---", *matter, "---"]),
        f"# {escape_markdown(run_name)}",
        f"{entity.plural[0].upper()}{entity.plural[1:]} of {escape_markdown(model)}. {FILES[noun]}",
        "## Use",
        *format_run_usage(noun, rows, address),
        "## Layers",
        format_layer_table(rows, {column.field: column.heading for column in entity.columns}),
        "## Training data",
        format_data_table(data) if data else "The games are not recorded in the registry that exported this.",
        "## Commands",
        "This script makes the run in an empty folder:",
        format_block("sh", write_script_lines(steps, session.store)),
    ]
    results = []
    for title in RESULTS[noun]:
        result = run_query(session.database, title, run=(run_id.hex,))
        if len(result) and result.entry is not None:
            results += [f"### {result.entry.question}", format_markdown(result).rstrip("\n")]
    parts += ["## Results", *results] if results else []
    return hide_private_text(session, "\n\n".join(filter(None, parts)) + "\n")


def format_run_usage(noun: str, rows: Sequence[dict[str, Any]], address: HubAddress) -> list[str]:
    """Return the commands and the code that load the results of a run."""
    pattern = {"probe": "*.probe.safetensors", "vector": "*.vector.safetensors", "sae": "blocks.*/"}[noun]
    commands = [f"chessreg fetch {address}", f"chessreg import {noun} {pattern} --checkpoint MODEL --name mine"]
    if noun != "sae":
        return [format_block("sh", commands)]
    from chessreg.experiments.sae.stored import build_output_name

    first_output = build_output_name(rows[0]["hook_point"], rows[0]["features"], rows[0]["detail"]["d_model"])
    code = ["from sae_lens import SAE", "", f'sae = SAE.from_pretrained("{address.repository}", "{first_output}")']
    return [format_block("sh", commands), format_block("python", code)]


def list_run_data(sql: SqlSession, steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the datasets among the steps that make a run."""
    dataset_ids = {step["id"] for step in steps if step["noun"] == "dataset"}
    return [row for row in read_entity_rows(sql, "dataset", tables.Dataset) if row["id"].hex in dataset_ids]


def format_block(language: str, lines: Sequence[str]) -> str:
    """Return a fenced block of code."""
    fence = "````" if "```" in "".join(lines) else "```"
    return "\n".join([f"{fence}{language}", *lines, fence])


def format_layer_table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    """Return a Markdown table of the columns that have a value in any row, except `run_id` and `name`.

    `columns` are the headings by column name.
    """
    headings = {name: heading for name, heading in columns.items() if name not in ("run_id", "name")}
    headings = {name: heading for name, heading in headings.items() if any(row.get(name) is not None for row in rows)}
    lines = [f"| {' | '.join(headings.values())} |", f"|{' --- |' * len(headings)}"]
    for row in rows:
        cells = (row.get(name) for name in headings)
        lines.append(f"| {' | '.join(escape_markdown(format_table_value(cell)) for cell in cells)} |")
    return "\n".join(lines)


def format_table_value(value: Any) -> str:
    """Return a value for a table: numbers with four significant digits."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def hide_private_text(session: Session, card: str) -> str:
    """Return the card without secrets, host names after names (`name@host`) and folders of this machine."""
    with session.database.read() as sql:
        hosts = {host for host in sql.scalars(select(tables.Machine.host)) if host}
    for host in hosts:
        card = card.replace(f"@{host}", "")
    return mask(hide_folders(card))


def hide_folders(text: str) -> str:
    """Return the text with each absolute path, and each path from a home or parent folder, as its last part.

    >>> hide_folders("chessreg run /home/ann/kinds/mine.py --book ../books/a.pgn 2>/dev/null # https://a.org/b/c, 1/2")
    'chessreg run mine.py --book a.pgn 2>/dev/null # https://a.org/b/c, 1/2'
    """
    return FOLDER.sub(lambda match: match[0] if match[0] in SYSTEM_PATHS else match["name"], text)
