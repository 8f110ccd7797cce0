"""`sae`: gated sparse autoencoders of the residual stream, trained at all hook points in one pass over the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.errors import NotFoundError
from chessreg.experiments.sae.data import SaeOrigin
from chessreg.experiments.sae.spec import LatentRow, SaeOptions, SaeSpec
from chessreg.experiments.settings import overlap
from chessreg.games.boards.boardframe import BoardFrame
from chessreg.games.datasets import labels
from chessreg.registry import tables
from chessreg.runs.kind import Kind, RunEstimate

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


__all__ = ["LatentRow", "Sae", "SaeOptions", "SaeSpec"]


class Sae(Kind):
    """Gated sparse autoencoders of the residual stream, one for each hook point and expansion.

    Rajamanoharan et al. 2024; Davis, sections 3.2 and 4.2. One unit is one expansion at one hook point. All missing
    units are trained in parallel, from a cache or from a model that reads the games once for all of them. Their states
    are saved every few minutes in the run's folder, and an interrupted run resumes with the exact next batch. Then
    held-out games give the metrics of each SAE: cross-entropy with and without it, sparsity, error, and the positions
    at which each latent is most active.
    """

    name = "sae"
    main_settings = (
        "cache",
        "checkpoint",
        "dataset",
        "heldout",
        "layers",
        "hook_points",
        "expansions",
        "tokens",
        "l1_coefficient",
        "l0",
    )
    example = "--cache reference-fit --expansions 2 --tokens 2000 --batch-tokens 100 --heldout-games 10"
    tables = ("prediction", "statistic", "metric_point")
    spec = SaeSpec
    options = SaeOptions
    columns = {"prediction": LatentRow}  # noqa: RUF012
    queries = ("sae reconstruction",)
    states = ("sae-*.pt",)
    clocked = ("train_seconds",)

    def units(self, spec: SaeSpec, inputs: Inputs) -> int:
        return len(SaeOrigin.from_spec(spec, inputs).list_saes(spec))

    def check(self, spec: SaeSpec, inputs: Inputs) -> None:
        """Raise BadInputError for sites that the model's encoding lacks, and for held-out games that the model or the
        SAE is trained on."""
        origin = SaeOrigin.from_spec(spec, inputs)
        origin.encode_items(inputs.encoding(origin.checkpoint), origin.held_items, origin.held_places[:1])
        items, places = origin.held_items, origin.held_places
        overlap.refuse_overlap(inputs, origin.checkpoint, items, places, spec.allow_overlap)
        overlap.refuse_game_overlap(
            [(origin.items, origin.places)], items.hashes[places], spec.allow_overlap, "the SAE"
        )

    def estimate(self, spec: SaeSpec, inputs: Inputs) -> RunEstimate:
        origin = SaeOrigin.from_spec(spec, inputs)
        saes, width = len(origin.list_saes(spec)), origin.row.d_model
        features = [expansion * width for expansion in spec.expansions]
        latents = sum(features) * len(origin.points)
        operations = 14 * width * latents * spec.tokens
        remarks = (
            f"{saes} SAEs of {', '.join(f'{count:,}' for count in features)} latents, {spec.steps:,} steps "
            f"each on {len(origin.places):,} games",
            f"about {operations:.2g} floating-point operations; {len(origin.held_places):,} held-out games",
        )
        rows = {"statistic": 13 * saes, "metric_point": 520 * saes, "prediction": latents}
        return RunEstimate(rows, 2 * 4 * width * latents, remarks, operations)

    def run(self, task: Task[SaeSpec, SaeOptions]) -> None:
        from chessreg.experiments.sae.work import SaeWork, build_state_name

        with task.lock_states(*map(build_state_name, task.units)):
            SaeWork(task).run_units()

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:

        return build_latent_frames(row, inputs)


BOARD_LETTERS = "kqrbnp.PNBRQK"


def build_latent_frames(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """Return one board for each strongest position of a latent, with the text up to the token and the token in
    brackets.

    The latent is the row's; for a row without one, the unit's strongest latent. Raises NotFoundError if no latent of
    the unit is active, or if the run kept no positions.
    """
    run_id, unit = UUID(str(row["run_id"])), int(row["unit"])
    with inputs.database.read() as session:
        run = session.get_one(tables.Run, run_id)
        spec = SaeSpec(**run.spec)
        sae = session.get_one(tables.SaeRecord, (run_id, unit))
        if "item" not in row:
            prediction = tables.Prediction
            best_layer = session.scalars(
                select(prediction)
                .where(prediction.run_id == run_id, prediction.unit == unit)
                .order_by(prediction.value.desc(), prediction.item)
            ).first()
            if best_layer is None:
                raise NotFoundError("no latent of this SAE is active on the held-out games")
            row = {**row, "item": best_layer.item, **(best_layer.detail or {})}
        name = f"{sae.hook_point}, expansion {sae.detail['expansion']}"
    if not row.get("games"):
        raise NotFoundError("the run kept no positions of this latent", "chessreg run sae --boards 8")
    origin = SaeOrigin.from_spec(spec, inputs)
    games, tokens, plies = (np.array(row[name], np.int64) for name in ("games", "tokens", "plies"))
    encoding = inputs.encoding(origin.checkpoint)
    texts = [
        format_token_context(encoding, origin, game, token, ply)
        for game, token, ply in zip(games, tokens, plies, strict=True)
    ]
    views: list[BoardFrame | None] = [None] * len(games)
    strongest = max(row["activations"])
    for rows, positions in labels.iterate_positions(origin.held_items, games, plies):
        for at, board in zip(rows.tolist(), positions.boards, strict=True):
            value = row["activations"][at]
            views[at] = BoardFrame(
                title=f"latent {row['item']} of {name}: {value:.3g}, game {games[at]}, ply {plies[at]}",
                squares="".join(BOARD_LETTERS[piece + 6] for piece in board.tolist()),
                caption=(
                    texts[at],
                    f"{value / strongest:.0%} of its strongest; active at {row['frequency']:.3%} of tokens",
                ),
            )
    return [frame for frame in views if frame is not None]


def format_token_context(encoding: Encoding, origin: SaeOrigin, game: int, token: int, ply: int) -> str:
    """Return the text of the last 24 tokens before token `token` of the game at row `game`, and the token in brackets.
    For a position, which is found by `ply`, return its whole text and the token."""
    tokens = origin.encode_items(encoding, origin.held_items, np.array([game])).tokens
    if encoding.content == "position":
        item = int(np.flatnonzero(tokens.ply == ply)[0]) if len(tokens) > 1 else 0
        ids = tokens.item(item)
        return f"{encoding.decode(ids)} [{encoding.vocabulary[int(ids[token])]}]"
    ids = tokens.item(0)
    return f"{encoding.decode(ids[max(0, token - 24) : token])}[{encoding.decode(ids[token : token + 1])}]"
