"""Settings of a language model's prompt: the checkpoint's own prompt, or changes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from chessreg.encodings.prompts import PREFIX, TEMPLATES, PromptEncoding, PromptSettings, read_template
from chessreg.errors import BadInputError
from chessreg.noise import generator
from chessreg.runs.spec import Spec

if TYPE_CHECKING:
    from chessreg.registry import tables
    from chessreg.runs.inputs import Inputs


class PromptSpec(Spec):
    """The settings of a prompt; those left out are the checkpoint's.

    A spec holds the text of a template, so templates with the same name are never confused.
    """

    template: str | None = Field(
        None,
        description=f"prompt template: {', '.join(TEMPLATES)}; or its text, or a file with the text: {{FEN}}, "
        "optionally {LM}, and {BM} at the end. Left out: the checkpoint's own",
    )
    layout: Literal["ruoss77", "flattened_with_slashes"] | None = Field(
        None,
        description="layout of a position: 77 characters (the author's code), or a FEN with slashes (the paper). Left "
        "out: the checkpoint's own",
    )
    counters: Literal["kept", "blanked"] | None = Field(
        None,
        description="move counters: kept (the author's code) or blanked (its README). Left out: the checkpoint's own",
    )
    notation: Literal["uci", "san"] | None = Field(
        None,
        description="notation of moves: uci (the author's code) or san (the paper). Left out: the checkpoint's own",
    )
    last_separator: bool | None = Field(
        None, description="also put a comma and a space after the last legal move (the author's code)"
    )

    @field_validator("template")
    @classmethod
    def _as_text(cls, template: str | None) -> str | None:
        return None if template is None else read_template(template)

    def prompt_settings(self, model_settings: PromptSettings | None = None) -> PromptSettings:
        """Return the settings; those left out are as in `model_settings`."""
        model_settings = model_settings or PromptSettings()
        names = PromptSettings.__dataclass_fields__
        explicit_settings: dict[str, Any] = {
            name: getattr(self, name) for name in names if getattr(self, name) is not None
        }
        return PromptSettings(**({name: getattr(model_settings, name) for name in names} | explicit_settings))


def check_prompted_model(checkpoint: tables.Checkpoint) -> None:
    """Raise BadInputError for a checkpoint that does not read prompts."""
    if not checkpoint.tokenizer.startswith(PREFIX):
        raise BadInputError(
            f"the checkpoint reads {checkpoint.tokenizer}, not prompts",
            "chessreg import checkpoint FOLDER --encoding prompt",
        )


def check_prompt_room(encoding: PromptEncoding, block_size: int) -> None:
    """Raise BadInputError if the first position and an answer do not fit a model's context."""
    import chess

    needed_tokens = len(encoding.prompt(chess.Board())) + encoding.max_move_tokens - 1
    if needed_tokens > block_size:
        raise BadInputError(
            f"the model reads {block_size} tokens, but the first position and its answer have {needed_tokens}",
            "use a shorter template, a template without the legal moves, or a longer context",
        )


def load_labelled_positions(references: Sequence[str], inputs: Inputs, field: str) -> dict[str, list[Any]]:
    """Return the positions of these datasets that have a best move, in file order, without copies of earlier positions.

    The best move of a puzzle is its solution's first move. The columns are `fen`, `best`, `game`, `row`, and `dataset`,
    the index of a reference. Raises BadInputError for games, and if no position has a best move.
    """
    columns = ("row", "fen", "best", "game")
    column_lists: dict[str, list[Any]] = {name: [] for name in (*columns, "dataset")}
    seen_hashes = np.zeros(0, np.uint64)
    for number, reference in enumerate(references):
        items, part = inputs.items(reference, field)
        if items.content == "games":
            raise BadInputError("a dataset of games has no best moves", "give a dataset of positions")
        places, seen_hashes = items.new_rows(part, seen_hashes)
        table = items.take(places, list(columns))
        table = table.filter(table["best"].is_valid())
        for name in columns:
            column_lists[name] += table[name].to_pylist()
        column_lists["dataset"] += [number] * len(table)
    if not column_lists["fen"]:
        raise BadInputError("no position has a best move", "chessreg dataset show NAME")
    return column_lists


def draw_sample(count: int, most: int, *key: int | str) -> list[int]:
    """Return at most `most` of the numbers 0 to count - 1, drawn with this key, ascending."""
    if count <= most:
        return list(range(count))
    return sorted(generator(*key).permutation(count)[:most].tolist())
