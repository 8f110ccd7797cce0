"""The settings of imported games, probes and vectors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.imported.file import SAMPLE, FileSpec, locate_sample, replace_sample
from chessreg.folders import expand_path
from chessreg.games.boards.openings import parse_opening
from chessreg.games.engines.opponents import parse_limit
from chessreg.games.foreign import FORMATS, find_format, read_games
from chessreg.models.hook_points import PATTERNS, RESID_POST
from chessreg.runs.spec import Moves, Ref, Spec


class ImportedGamesSpec(FileSpec):
    bundled_file = "sample-results.csv"
    format: str = Field("", description="chess_gpt_eval or pgn. Left out: detected from the file's content")
    players: tuple[str, ...] = Field(
        (), description="players whose results are counted, preferred player first. Left out: a model before an engine"
    )
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="the model, as a checkpoint of this registry. Left out: an unknown model"
    )
    rename: tuple[str, ...] = Field((), description="OLD=NEW: replace a player's name. Left out: names as in the file")
    engine_version: str = Field("unknown", description="the engines' version, which is not in these files")
    limit: str = Field("unknown", description="an engine's limit if the file has none, such as time=0.1")
    opening: str = Field("standard", description="standard or random:PLIES, which is not in these files")
    policy: str = Field("", description="how the model's moves were chosen. Left out: as the format's program does")
    move_limit: Moves | None = Field(
        None, ge=1, description="full moves after which games were stopped. Left out: the value of the format's program"
    )

    adjudication: str = Field(
        "none",
        description="limit of Stockfish's evaluation of games stopped at the move limit, such as nodes=100000. Left "
        "out: they have no result",
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_sample(cls, values: Any) -> Any:
        """Replace `sample` by the bundled file, and detect the format of an existing file.

        Raises BadInputError for a file without a game to import, before the file is stored.
        """
        if not isinstance(values, dict):
            return values
        values = replace_sample(values, cls.bundled_file)
        path = expand_path(str(values.get("file", "")))
        if os.path.isfile(path):  # also False for a name that no file can have
            values = {**values, "format": values.get("format") or find_format(path).name}
            if FORMATS[values["format"]].holds == "games":
                read_games(path, values["format"])
        return values

    @field_validator("format")
    @classmethod
    def _check_format(cls, format: str) -> str:
        if format and FORMATS[format].holds != "games":
            raise BadInputError(
                f"a {format} file holds {FORMATS[format].holds}, not games", "chessreg import results FILE"
            )
        return format

    @field_validator("rename")
    @classmethod
    def _check_renames(cls, rename: tuple[str, ...]) -> tuple[str, ...]:
        parse_renames(rename)
        return rename

    @field_validator("limit")
    @classmethod
    def _limit(cls, limit: str) -> str:
        return limit if limit == "unknown" else parse_limit(limit).text

    @field_validator("adjudication")
    @classmethod
    def _adjudication(cls, adjudication: str) -> str:
        return adjudication if adjudication == "none" else parse_limit(adjudication).text

    @field_validator("opening")
    @classmethod
    def _opening(cls, opening: str) -> str:
        if opening.partition(":")[0] not in ("standard", "random"):
            raise BadInputError(f"{opening!r}: imported games have standard or random openings", "--opening random:20")
        return parse_opening(opening).text

    @property
    def opening_plies(self) -> int:
        """Number of random plies at the start of each game; 0 for standard openings."""
        return int(self.opening.partition(":")[2] or 0)


class ImportSpec(Spec):
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="checkpoint of this registry. Left out: an unknown model"
    )
    model: str = Field("", description="name of the model. Left out: from the file")
    layers: tuple[int, ...] = Field((), description="layers, 0-based, one for each file. Left out: from the files")
    label: str = Field("", description="label that the probe predicts: piece, skill, …. Left out: from the file")
    residual: Literal["auto", "raw", "centred"] = Field(
        "auto", description="the residual stream's convention; auto: centred for models called tf_lens_…, else raw"
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_sample(cls, values: Any) -> Any:
        """Replace `sample` by the path of the bundled file."""
        files = values.get("files") if isinstance(values, dict) else None
        if isinstance(files, (list, tuple)) and SAMPLE in files:
            place = str(locate_sample("sample-direction.pth"))
            return {**values, "files": tuple(place if f == SAMPLE else f for f in files)}
        return values


class ImportedProbeSpec(ImportSpec):
    files: Annotated[tuple[str, ...], Ref("probe-file")] = Field(
        min_length=1, description="saved probes of one model, one a layer; `sample` is one that comes with chessreg"
    )
    hook_point: str = Field(
        RESID_POST,
        description=f"hook point (* for the layer), for files that do not record it: {', '.join(PATTERNS)}",
    )
    phase: int | None = Field(
        None,
        ge=0,
        le=5,
        description="phase of the tokens that the probes were fitted at, for UCI squares. Left out: unknown",
    )


class ImportedVectorSpec(ImportSpec):
    files: Annotated[tuple[str, ...], Ref("vector-file")] = Field(
        min_length=1, description="saved vectors of one model, one a layer; `sample` is one that comes with chessreg"
    )
    source: Literal["auto", "contrastive", "cascade", "probe", "user"] = Field(
        "auto",
        description="origin of the vectors; auto: user for a tensor alone, probe for a probe's file, else contrastive",
    )
    hook_point: str = Field(
        RESID_POST,
        description=f"the vectors' hook point, * for the layer: {', '.join(PATTERNS)}; edits need {RESID_POST}",
    )


def parse_renames(rename: Sequence[str]) -> dict[str, str]:
    """Return OLD=NEW pairs as a mapping. Raises BadInputError for any other text."""
    pairs = [text.rpartition("=") for text in rename]
    if wrong := [text for text, (old, _, new) in zip(rename, pairs, strict=True) if not (old.strip() and new.strip())]:
        raise BadInputError(f"--rename {wrong[0]!r} is not OLD=NEW", "for example --rename model.pt=karvonen-16")
    return {old.strip(): new.strip() for old, _, new in pairs}
