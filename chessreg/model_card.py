"""The model card of an exported checkpoint, as Markdown: data, training and results from the registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg import encodings
from chessreg.entities.base import read_entity_rows
from chessreg.entities.checkpoint import read_checkpoint
from chessreg.entities.reproduce import list_steps, write_script_lines
from chessreg.queries import run_query
from chessreg.queries.render import escape_markdown, format_markdown
from chessreg.registry import tables
from chessreg.runs.inputs import require_weights

if TYPE_CHECKING:
    from chessreg.models.hub_repository import HubAddress
    from chessreg.session import Session

RESULTS = (
    "perplexity", "legal moves by ply", "legal moves by phase", "move accuracy by model", "puzzles by rating",
    "best probe layers", "wins by level", "ratings",
)  # fmt: skip
"""Queries whose rows of this checkpoint are in the card."""
OF_TRANSFORMERS = ("gpt2", "llama")  # architectures whose folder transformers loads without chessreg
NOT_RECORDED = "not recorded in the registry that exported it"
HUB_LICENCES = frozenset((
    "apache-2.0", "mit", "openrail", "bigscience-openrail-m", "cc", "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0",
    "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cdla-sharing-1.0",
    "cdla-permissive-1.0", "cdla-permissive-2.0", "wtfpl", "gpl", "gpl-2.0", "gpl-3.0", "agpl-3.0", "lgpl", "lgpl-2.1",
    "lgpl-3.0", "mpl-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsl-1.0", "isc", "unlicense", "odbl", "odc-by",
    "pddl", "artistic-2.0", "ecl-2.0", "epl-2.0", "eupl-1.1", "eupl-1.2", "ms-pl", "zlib", "unknown",
))  # fmt: skip
"""Licences that the hub accepts in a card (hf.co/docs/hub/repositories-licenses)."""
OTHER_LICENCE = "other"


def format_model_card(session: Session, reference: str, address: HubAddress | None = None) -> str:
    """Return the card of a checkpoint, in a folder or in a repository of the hub. Missing facts are stated as not
    recorded.

    Raises NotFoundError for an unknown checkpoint, BadInputError for one that is known by its games only.
    """
    with session.database.read() as sql:
        row = read_checkpoint(sql, reference)
        require_weights(sql.get_one(tables.Checkpoint, row["id"]), reference)
        data = None if row["training_datasets"] is None else list_training_data(sql, row["training_datasets"])
        steps = list_steps(sql, row["run_id"]) if row["run_id"] else None
    name = escape_markdown(row["name"] or row["id"].hex[-6:])
    parts = [
        format_front_matter(row, data or []),
        f"# {name}",
        format_summary(row),
        "## Use",
        format_usage(row, address),
        "## Training data",
    ]
    parts.append(format_data_table(data) if data else f"The training games are {NOT_RECORDED}.")
    parts += ["## Training", format_training(session, row, steps), "## Results", format_results(session, row)]
    return "\n\n".join(filter(None, parts)) + "\n"


def list_training_data(sql: Any, references: list[str]) -> list[dict[str, Any]]:
    """Return the rows of the datasets that a checkpoint was trained on, as far as they are registered."""
    identities = {reference.partition(":")[2].partition(":")[0] for reference in references}
    return [row for row in read_entity_rows(sql, "dataset", tables.Dataset) if row["identity"] in identities]


def format_front_matter(row: dict[str, Any], data: list[dict[str, Any]]) -> str:
    """Return the card's YAML; it names a licence only if every dataset has the same one."""
    licences = {dataset["licence"] for dataset in data}
    licence = licences.pop() if len(licences) == 1 else None
    lines = [f"library_name: {'transformers' if row['architecture'] in OF_TRANSFORMERS else 'chessreg'}"]
    lines += format_licence(licence)
    return "\n".join(["---", *lines, "tags: [chess, chessreg]", "---"])


def format_licence(licence: str | None) -> list[str]:
    """Return the lines of a card's YAML that name a licence, in the words that the hub accepts."""
    if not licence:
        return []
    lowercase_licence = licence.lower()
    if lowercase_licence in HUB_LICENCES:
        return [f"license: {lowercase_licence}"]
    return [f"license: {OTHER_LICENCE}", f"license_name: {json.dumps(licence)}"]


def format_summary(row: dict[str, Any]) -> str:
    """Return one sentence with the architecture, sizes and encoding of a checkpoint, in Markdown."""
    return (
        f"{escape_markdown(row['architecture'])}, {row['layers']} layers, d_model {row['d_model']}, "
        f"{row['heads']} heads, "
        f"{row['parameters']:,} parameters, context of {row['block_size']:,} tokens, encoding `{row['tokenizer']}`."
    )


def format_usage(row: dict[str, Any], address: HubAddress | None = None) -> str:
    """Return the code that loads the model: with transformers if it supports the architecture and the tokenizer."""
    fetch_command = f"# prints the folder\nchessreg fetch {address}\n" if address else ""
    command = f"```sh\n{fetch_command}chessreg import checkpoint {'FOLDER' if address else '.'} --name mine\n```"
    place = address.repository if address else "."
    name = row["tokenizer"]
    history = name not in encodings.list_encodings() or encodings.get_encoding(name).content == "history"
    if row["architecture"] not in OF_TRANSFORMERS or not history:
        return command
    code = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{place}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{place}")'
    )
    return f"```python\n{code}\n```\n\n{command}"


def format_data_table(data: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the training datasets: games, plies, file, licence and digest."""
    lines = ["| dataset | games | plies | file | licence | SHA-256 |", "| --- | ---: | ---: | --- | --- | --- |"]
    for row in data:
        cells = (row["name"] or row["id"].hex[-6:], row["source"] or "", row["licence"] or "not recorded")
        name, source, licence = map(escape_markdown, cells)
        plies = f"{row['plies']:,}" if row["plies"] is not None else ""
        lines.append(f"| {name} | {row['games']:,} | {plies} | {source} | {licence} | `{row['artifact']}` |")
    return "\n".join(lines)


def format_training(session: Session, row: dict[str, Any], steps: list[dict[str, Any]] | None) -> str:
    """Return the origin of the weights: a script of commands for a run of this registry, else their source."""
    if steps is not None:
        lines = "\n".join(write_script_lines(steps, session.store))
        return f"This script makes the model in an empty folder:\n\n```sh\n{lines}\n```"
    shape = row["detail"].get("shape") or {}
    facts = {
        "Ratings of the player and its opponent": f"{shape['rating']} and {shape['opponent_rating']}"
        if "opponent_rating" in shape
        else None,
        "File": row["source_file"],
        "SHA-256": row["source_sha256"],
        "Downloaded from": row["fetched_from"],
        "Untrained model of the shape of": row["parent"],
        "Format": row["source_format"],
    }
    return "\n".join(f"- {label}: {escape_markdown(str(value))}" for label, value in facts.items() if value)


def format_results(session: Session, row: dict[str, Any]) -> str:
    """Return as Markdown the loss and legality measured at import, and the table of each query in `RESULTS` for the
    checkpoint `row`, under the question that it answers."""
    parts = []
    if row["import_loss"] is not None:
        parts.append(
            f"On bundled games: loss {row['import_loss']:.3f} nats per token, {100 * row['import_legal']:.1f} % of the "
            "most probable moves are legal."
        )
    for title in RESULTS:
        result = run_query(session.database, title, checkpoint=(UUID(str(row["id"])).hex,))
        if len(result) and result.entry is not None:
            parts += [f"### {result.entry.question}", format_markdown(result).rstrip("\n")]
    return "\n\n".join(parts) or f"Results are {NOT_RECORDED}."
