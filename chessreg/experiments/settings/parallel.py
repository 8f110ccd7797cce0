"""Execution options of trainings that several processes can share (chessreg/models/ranks.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from chessreg.errors import BadInputError
from chessreg.runs.spec import ExecutionOptions

if TYPE_CHECKING:
    from chessreg.models.training import TrainerOptions


class ParallelOptions(ExecutionOptions):
    devices: int = Field(
        1,
        ge=1,
        description="CUDA devices that share each batch, one process each; on a CPU: processes (data parallel)",
    )
    nodes: int = Field(
        1, ge=1, description="machines of one Slurm job, each with --devices processes (chessreg launch --on slurm)"
    )
    compile: bool = Field(False, description="torch.compile the training step")


class ModelTrainingOptions(ParallelOptions):
    """The execution options of trainings of language models."""

    autocast: bool = Field(True, description="compute in bfloat16 where that is safe")
    activation_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass: less memory, about a third more time"
    )
    fsdp: bool = Field(
        False,
        description="shard weights, gradients and optimizer states over the devices (FSDP), for models that do not "
        "fit one device",
    )
    log_steps: int = Field(20, ge=1, description="steps between points of the loss curve")
    checkpoint_seconds: float = Field(300.0, gt=0, description="seconds between saved states")

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        if self.fsdp and self.devices * self.nodes == 1:
            raise BadInputError("--fsdp shards a training over several devices", "give --devices N, or leave it out")
        return self

    def trainer_options(self, device: str, micro_tokens: int) -> TrainerOptions:
        """Return the trainer's options. `micro_tokens`: most tokens in one forward pass."""
        from chessreg.models.training import TrainerOptions

        return TrainerOptions(
            device,
            micro_tokens,
            self.autocast,
            self.compile,
            self.log_steps,
            self.checkpoint_seconds,
            activation_checkpointing=self.activation_checkpointing,
            fsdp=self.fsdp,
        )
