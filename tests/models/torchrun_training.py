"""A training that torchrun starts: `torchrun … -m tests.models.torchrun_training FOLDER STEPS [fsdp]`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from chessreg.models.ranks import follow_torchrun_group, release_torchrun_group, run_ranks
from chessreg.models.training import Trainer

from .test_ranks import SHORT
from .test_training import HOW, corpus

if __name__ == "__main__":
    folder, until = Path(sys.argv[1]), int(sys.argv[2])
    if os.environ["RANK"] == "0":
        trainer = Trainer(SHORT, corpus(), folder, replace(HOW, fsdp="fsdp" in sys.argv[3:]))
        try:
            if until:  # otherwise nothing is left to do
                with run_ranks(trainer, int(os.environ["LOCAL_WORLD_SIZE"])):
                    trainer.run(lambda point: None, corpus(20), 20, lambda: trainer.step >= until)
        finally:
            release_torchrun_group()
    else:
        follow_torchrun_group(1, "cpu")
