"""Slots of a machine: which GPU or how many cores a work gets, and which are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chessreg.errors import BadInputError
from chessreg.scheduling.executors import Needs
from chessreg.scheduling.executors.gpus import Gpu

EXCLUSIVE_SHARE = 0.9  # of a GPU's memory that must be free when a work wants it alone and names no amount


@dataclass(frozen=True)
class Slot:
    """What one work was given: a GPU by index or none, and CPU threads."""

    gpu: int | None
    threads: int
    shared: bool = False

    @property
    def env(self) -> dict[str, str]:
        """What makes a process keep to it."""
        visible = "" if self.gpu is None else str(self.gpu)
        threads = str(self.threads)
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "CHESSREG_THREADS": threads,  # what the worker takes for --threads, and records
            "CHESSREG_GPU": visible,
        }


class Slots:
    """The cores and GPUs of this machine, and who holds them. Cores are for works that use no GPU."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._taken: dict[str, Slot] = {}

    def find(self, needs: Needs, gpus: Sequence[Gpu]) -> Slot | None:
        """A free slot, or None when it must wait. `gpus` are this machine's as they are now.

        Raises BadInputError when this machine can never give one.
        """
        wants_gpu = needs.device.startswith("cuda")
        if wants_gpu and not gpus:
            raise BadInputError(f"this machine has no GPU for --device {needs.device}", "--device cpu")
        if needs.device == "cpu" or not gpus:
            return self._cpu(needs)
        _, _, number = needs.device.partition(":")
        if number and int(number) not in {gpu.index for gpu in gpus}:
            raise BadInputError(f"this machine has no GPU {number}", f"it has {len(gpus)}, counted from 0")
        most = max(gpu.total for gpu in gpus if not number or gpu.index == int(number))
        if needs.gpu_memory > most:
            raise BadInputError(f"no GPU here has {needs.gpu_memory:g} GiB", f"the largest has {most:.0f} GiB")
        for gpu in sorted(gpus, key=lambda gpu: -gpu.free):
            if (not number or gpu.index == int(number)) and self._fits(gpu, needs):
                return Slot(gpu.index, self._threads(needs, len(gpus)), needs.share_gpu)
        return None

    def take(self, holder: str, slot: Slot) -> None:
        self._taken[holder] = slot

    def give_back(self, holder: str) -> None:
        self._taken.pop(holder, None)

    def holds(self, holder: str) -> bool:
        return holder in self._taken

    def _fits(self, gpu: Gpu, needs: Needs) -> bool:
        on_it = [slot for slot in self._taken.values() if slot.gpu == gpu.index]
        if on_it and not (needs.share_gpu and all(slot.shared for slot in on_it)):
            return False
        wanted = needs.gpu_memory or (0.0 if needs.share_gpu else EXCLUSIVE_SHARE * gpu.total)
        return gpu.free >= wanted

    def _cpu(self, needs: Needs) -> Slot | None:
        threads = self._threads(needs, needs.shards)
        taken = sum(slot.threads for slot in self._taken.values() if slot.gpu is None)
        return Slot(None, threads) if taken + threads <= self.cores else None

    def _threads(self, needs: Needs, side_by_side: int) -> int:
        return min(needs.threads or max(1, self.cores // max(side_by_side, 1)), self.cores)
