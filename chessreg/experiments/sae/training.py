"""The training of one autoencoder. Parameters, optimizer and position are saved together, so that it resumes
exactly."""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chessreg.errors import BadInputError, ChessregError, DivergedError, get_first_line, reraise_lack_of_memory
from chessreg.experiments.sae.spec import SaeSpec
from chessreg.models.gated_sae import NAMES, Adam, GatedSae, train_step
from store.files import replace_file

if TYPE_CHECKING:
    from chessreg.models.ranks import Ranks

CURVE_POINTS = 100  # number of points of a training's curve


class SaeTrainer:
    """The autoencoder of one hook point and expansion in training.

    With `--l0` a short training for each λ of the search comes first, all on the same tokens; then the real training
    uses the λ interpolated from them. `stage` counts these trainings.
    """

    def __init__(self, spec: SaeSpec, point: str, expansion: int, d_model: int, path: Path, device: str) -> None:
        """Load the state at `path` if the file exists; `has_state` is True then."""
        self.spec, self.point, self.expansion, self.path, self.device = spec, point, expansion, path, device
        self.d_model, self.features = d_model, expansion * d_model
        self.stage = self.step = 0
        self.measured_l0: list[float] = []  # L0 of the finished short trainings
        self.scale, self.mean = 1.0, torch.zeros(d_model, device=device)
        self.one = torch.ones((), device=device)
        self.seconds = 0.0
        self.clock = time.process_time if device == "cpu" else time.perf_counter
        self.ranks: Ranks | None = None
        self.is_compiled = False  # whether steps use torch.compile
        self.begin_stage()
        self.has_state = path.exists()
        if self.has_state:
            self.load()

    def begin_stage(self) -> None:
        """Initialize the parameters, at the start of a stage."""
        self.step = self.tokens = 0
        self.sae = GatedSae.make_initial(self.d_model, self.features, self.spec.seed, self.scale, self.device)
        if self.spec.centre:
            self.sae.b_dec.copy_(self.mean * self.scale)
        self.adam = Adam(self.sae.parameters(), self.spec.beta1, self.spec.beta2)
        self.gradient = {name: torch.empty_like(value) for name, value in self.sae.parameters().items()}
        zeros = partial(torch.zeros, device=self.device)  # sums stay on the device, because reading one waits for it
        # number of tokens read when each latent was last active
        self.fired_at = zeros(self.features, dtype=torch.int64)
        self.curve: list[dict[str, float]] = []
        # number of steps since the curve's last point, and the sums of loss, sse, l1, l0 and spread
        self.point_sums = zeros(6, dtype=torch.float64)
        # for the last fifth of a stage: number of steps, and the sum of their L0
        self.late = zeros(2, dtype=torch.float64)

    # -- position -----------------------------------------------------------------------------------------------------

    @property
    def stages(self) -> int:
        """Number of trainings: the short ones of the search, and the real one."""
        return len(self.spec.l0_search) + 1

    @property
    def is_complete(self) -> bool:
        """Whether the real training is finished."""
        return self.stage == self.stages

    def count_steps(self, stage: int) -> int:
        """Return the number of updates of a stage."""
        tokens = self.spec.tokens if stage == len(self.spec.l0_search) else self.spec.l0_search_tokens
        assert tokens is not None
        return -(-tokens // self.spec.batch_tokens)

    @property
    def place(self) -> tuple[int, int]:
        """The number of finished updates, and of all updates, over all stages."""
        steps = [self.count_steps(stage) for stage in range(self.stages)]
        return sum(steps[: self.stage]) + (0 if self.is_complete else self.step), sum(steps)

    @property
    def coefficient(self) -> float:
        """λ of the current stage; after the end, of the last."""
        stage = min(self.stage, self.stages - 1)
        if stage < len(self.spec.l0_search):
            return self.spec.l0_search[stage]
        if self.spec.l0 is not None:
            return interpolate_coefficient(self.spec.l0, self.spec.l0_search, self.measured_l0)
        assert self.spec.l1_coefficient is not None
        return self.spec.l1_coefficient

    @property
    def dead_fraction(self) -> float:
        """Share of latents that were inactive for the last `dead_tokens` tokens, or for the whole of a shorter
        training."""
        window = min(self.spec.dead_tokens, self.tokens)
        return float((self.tokens - self.fired_at >= window).double().mean())

    # -- training -------------------------------------------------------------------------------------------------

    def learn_scale(self, rows: Tensor) -> None:
        """Set mean and scale from the first rows [n, d_model] of the training data.

        Mean ablation uses the mean. With `--centre` the decoder's bias starts at it, because each step changes the bias
        by at most the learning rate: it would need thousands of steps to reach a large mean. Raises DivergedError for
        NaN or infinite activations, and BadInputError if all are 0 or, with `--centre`, equal.
        """
        rows = rows.to(self.device)
        if not bool(rows.isfinite().all()):
            raise DivergedError(f"activations at {self.point} are NaN or infinite", "chessreg doctor --digests")
        self.mean = rows.mean(0, dtype=torch.float64).float()
        norm = float(rows.norm(dim=1).mean(dtype=torch.float64))
        min_norm = 0.0
        if self.spec.centre:
            norm, min_norm = float((rows - self.mean).norm(dim=1).mean(dtype=torch.float64)), 1e-6 * norm
        if not norm > min_norm:
            problem = "all equal" if self.spec.centre else "all 0"
            raise BadInputError(f"activations at {self.point} are {problem}", "give other --sites or --hook-points")
        self.scale = math.sqrt(self.d_model) / norm if self.spec.normalize_activations else 1.0
        self.begin_stage()

    def update(self, rows: Tensor) -> None:
        """Take one step on residuals float32 [n, d_model]. On a GPU it waits for the device only at points of the
        curve.

        Raises DivergedError at a point of the curve if the loss was NaN or infinite since the last one.
        """
        start = self.clock()
        steps = self.count_steps(self.stage)
        coefficient = self.coefficient * min(1.0, (self.step + 1) / max(1.0, self.spec.l1_warmup * steps))
        rate = self.spec.learning_rate * self.rate(self.step, steps)
        x = rows.to(self.device) * self.scale
        loss, firing_counts = train_step(
            self.sae,
            self.adam,
            self.gradient,
            x,
            coefficient,
            rate,
            precision=self.spec.precision,
            ranks=self.ranks,
            is_compiled=self.is_compiled,
        )
        self.step += 1
        self.tokens += len(rows)
        self.fired_at.masked_fill_(firing_counts, self.tokens)
        variance = (x - x.mean(0)).square().sum(1).mean()  # of the batch, as in SAELens
        self.point_sums += torch.stack([self.one, *(loss[name] for name in ("loss", "sse", "l1", "l0")), variance])
        if self.step > 0.8 * steps:
            self.late += torch.stack([self.one, loss["l0"]])
        if self.step % max(1, steps // CURVE_POINTS) == 0 or self.step == steps:
            self.note()
        self.seconds += self.clock() - start
        if self.step == steps:
            self.end_stage()

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate as a share of the largest: a linear rise, then a cosine to the final fraction."""
        assert self.spec.warmup_steps is not None
        warmup = self.spec.warmup_steps
        if self.stage < len(self.spec.l0_search):
            warmup = min(warmup, steps // 10)
        if step < warmup:
            return (step + 1) / warmup
        decay_share = (step - warmup) / max(1, steps - 1 - warmup)
        final = self.spec.final_fraction
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, decay_share)))

    def note(self) -> None:
        """Add a point to the curve: means since the last one. Raises DivergedError for a loss that is not finite."""
        count, loss, sse, l1, l0, variance = self.point_sums.tolist()
        self.check_loss(loss)
        self.curve.append({
            "step": self.step, "train_loss": loss / count, "train_sse": sse / count, "train_l1": l1 / count,
            "train_l0": l0 / count, "train_dead_fraction": self.dead_fraction,
            "train_explained_variance": 1 - sse / variance if variance > 0 else 0.0,
        })  # fmt: skip
        self.point_sums.zero_()

    def check_loss(self, total: float) -> None:
        """Raise DivergedError if a sum of losses is NaN or infinite."""
        if not math.isfinite(total):
            raise DivergedError(
                f"the SAE's loss at {self.point} is not finite by step {self.step}", "lower --learning-rate"
            )

    def end_stage(self) -> None:
        """Record the L0 of a short training and initialize the next one; after the real training the run is
        complete."""
        self.stage += 1
        if not self.is_complete:
            steps, l0 = self.late.tolist()
            self.measured_l0.append(l0 / max(steps, 1))
            self.begin_stage()

    # -- saved state ------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the state. A crash, a power cut or a full disk (DiskFullError) leaves the previous one.

        Raises DivergedError, and writes nothing, if the loss was NaN or infinite since the last point of the curve.
        """
        self.check_loss(float(self.point_sums[1]))
        state = {
            "place": [self.stage, self.step, self.tokens],
            "measured": self.measured_l0,
            "scale": self.scale,
            "mean": self.mean,
            "seconds": self.seconds,
            "parameters": self.sae.parameters(),
            "adam": self.adam.state(),
            "fired_at": self.fired_at,
            "curve": self.curve,
            "since": self.point_sums.tolist(),
            "late": self.late.tolist(),
        }
        with replace_file(self.path, self.path.with_suffix(".tmp")) as file:
            torch.save(state, file)

    def load(self) -> None:
        """Load the state. Raises ChessregError for a damaged file."""
        try:
            state: dict[str, Any] = torch.load(self.path, map_location=self.device, weights_only=True)
            self.stage, self.step, self.tokens = state["place"]
            self.scale = float(state["scale"])
            parameters = {name: state["parameters"][name].contiguous() for name in NAMES}
            self.sae = GatedSae(**parameters, scale=self.scale)
            self.adam = Adam(self.sae.parameters(), self.spec.beta1, self.spec.beta2)
            self.adam.restore(state["adam"])
            self.measured_l0, self.mean = list(state["measured"]), state["mean"]
            self.fired_at, self.curve = state["fired_at"], list(state["curve"])
            for sums, saved_sums in ((self.point_sums, state["since"]), (self.late, state["late"])):
                sums.copy_(torch.tensor(saved_sums, dtype=torch.float64))
            self.seconds = float(state["seconds"])
        except Exception as error:  # torch raises several types for a foreign file
            reraise_lack_of_memory(error)
            raise ChessregError(
                f"the saved state {self.path} cannot be read: {get_first_line(error)}", "remove it to start again"
            ) from error


def interpolate_coefficient(
    target: float, tried_coefficients: tuple[float, ...], measured_values: list[float]
) -> float:
    """Return the λ at which L0 would be `target`, interpolated between the tried λ, linearly in logarithms.

    Outside the range of `measured_values` it is the λ at its end: L0 still falls after a short training, so an
    extrapolation would be wrong.

    >>> round(interpolate_coefficient(20, (1.0, 2.0, 4.0), [80.0, 40.0, 10.0]), 3)
    2.828
    """
    pairs = sorted(zip(np.log(np.maximum(measured_values, 1e-3)), np.log(tried_coefficients), strict=True))
    l0, coefficient = (np.array(side) for side in zip(*pairs, strict=True))
    return float(math.exp(np.interp(math.log(target), l0, coefficient)))
