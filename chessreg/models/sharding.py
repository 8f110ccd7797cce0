"""Fully sharded training (FSDP2): each process keeps a part of the weights, gradients and optimizer states.

`torch.distributed.fsdp.fully_shard` gathers the weights of one block at a time for a forward or backward pass. Saved
states contain whole tensors, so that any number of processes, sharded or not, resumes from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

State = dict[str, Any]


def shard_model(model: nn.Module, blocks: Sequence[nn.Module], device: str, autocast: bool) -> None:
    """Shard each of `blocks`, and the rest of the model, over all processes of the group. Gradients are sums.

    With `autocast`, the blocks' matrices are gathered in bfloat16, the dtype of their products. Norms are gathered in
    float32, and so are embeddings and head, which determine the dtype of the residual stream. The part kept by each
    process and the sums of gradients are float32.
    """
    mesh = init_device_mesh(device.partition(":")[0], (dist.get_world_size(),))
    mixed_precision = MixedPrecisionPolicy(cast_forward_inputs=False)
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in blocks:
        if autocast and (norms := find_norms(block)):
            fully_shard(norms, mesh=mesh, mp_policy=mixed_precision)
        fully_shard(block, mesh=mesh, mp_policy=half if autocast else mixed_precision)
    fully_shard(model, mesh=mesh, mp_policy=mixed_precision)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def find_norms(block: nn.Module) -> list[nn.Module]:
    """Return the modules of a block whose own parameters are all vectors."""
    owned_parameters = [(module, list(module.parameters(recurse=False))) for module in block.modules()]
    return [
        module
        for module, own_parameters in owned_parameters
        if own_parameters and all(parameter.dim() == 1 for parameter in own_parameters)
    ]


def gather_tensors(value: Any, keep: bool) -> Any:
    """Return a nested state with each sharded tensor replaced by the whole tensor on the CPU, or by None unless `keep`.

    All processes must call it with the same state. At most one whole tensor is on the device at a time.
    """
    if isinstance(value, dict):
        return {key: gather_tensors(part, keep) for key, part in value.items()}
    if isinstance(value, list):
        return [gather_tensors(part, keep) for part in value]
    if isinstance(value, DTensor):
        full_tensor: Tensor = value.detach().full_tensor()
        return full_tensor.cpu() if keep else None
    return value


def shard_optimizer_state(state: State, optimizer: torch.optim.Optimizer) -> State:
    """Return an optimizer's state with the whole tensors sharded like the parameters of `optimizer` that they are of.

    Parameters are numbered in the order of the optimizer's groups.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def shard(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor) or not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value  # the number of steps
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)

    return {
        **state,
        "state": {
            number: {name: shard(value, parameters[number]) for name, value in values.items()}
            for number, values in state["state"].items()
        },
    }
