"""`sae`: gated sparse autoencoders of the residual stream, all hook points from one pass over the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chessreg.experiments.sae.data import Origin
from chessreg.experiments.sae.spec import LatentRow, SaeHow, SaeSpec
from chessreg.experiments.settings import overlap
from chessreg.runs.kind import Estimate, Kind

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


class Sae(Kind):
    """Gated sparse autoencoders of the residual stream, one for each hook point.

    Rajamanoharan et al. 2024; Davis, sections 3.2 and 4.2 (specification 3). One unit is one hook point; all missing
    ones are trained side by side, from a cache or from a model that runs over games once for all of them. Their states
    are saved every few minutes in the run's folder, and an interrupted run goes on with the exact next batch. Then each
    is measured on held-out games: cross-entropy with and without it, sparsity, error, and what each latent fires at.
    """

    name = "sae"
    example = "--cache reference-fit --expansion 2 --tokens 2000 --batch-tokens 100 --heldout-games 10"
    tables = ("prediction", "statistic", "metric_point")
    spec = SaeSpec
    options = SaeHow
    columns = {"prediction": LatentRow}  # noqa: RUF012
    queries = ("sae reconstruction",)
    clocked = ("train_seconds",)

    def units(self, spec: SaeSpec, inputs: Inputs) -> int:
        return len(Origin.of(spec, inputs).points)

    def check(self, spec: SaeSpec, inputs: Inputs) -> None:
        """Refuses sites that the model's encoding lacks, and held-out games that the model or the SAE is trained on."""
        origin = Origin.of(spec, inputs)
        origin.encoded(inputs.encoding(origin.checkpoint), origin.held_items, origin.held_places[:1])
        items, places = origin.held_items, origin.held_places
        overlap.refuse(inputs, origin.checkpoint, items, places, spec.allow_overlap)
        overlap.refuse_games([(origin.items, origin.places)], items.hashes[places], spec.allow_overlap, "the SAE")

    def estimate(self, spec: SaeSpec, inputs: Inputs) -> Estimate:
        origin = Origin.of(spec, inputs)
        saes, width = len(origin.points), origin.row.d_model
        features = spec.expansion * width
        operations = 14 * width * features * spec.tokens * saes
        remarks = (
            f"{saes} SAEs of {features:,} latents, {spec.steps:,} steps each on {len(origin.places):,} games",
            f"about {operations:.2g} floating-point operations; measured on {len(origin.held_places):,} games",
        )
        rows = {"statistic": 13 * saes, "metric_point": 520 * saes, "prediction": features * saes}
        return Estimate(rows, 2 * 4 * width * features * saes, remarks)

    def run(self, task: Task[SaeSpec, SaeHow]) -> None:
        from chessreg.experiments.sae.work import SaeWork

        SaeWork(task).do()

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.sae.board_views import views_of_latent

        return views_of_latent(row, inputs)
