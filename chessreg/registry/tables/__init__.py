"""The tables of the registry, one module per family."""

from chessreg.registry.tables.arrays import (
    ActivationCache,
    Artefact,
    ArtefactLocation,
    ArtefactState,
    Checkpoint,
    Intervention,
    Output,
    Probe,
    Sae,
    Tokenizer,
    Vector,
)
from chessreg.registry.tables.data import Dataset, Engine, OpeningBook, Split
from chessreg.registry.tables.provenance import (
    Attempt,
    AttemptState,
    Cause,
    Conflict,
    FragmentRecord,
    KindRecord,
    Machine,
    Run,
    RunInput,
    UnitRange,
)
from chessreg.registry.tables.results import Game, IllegalAttempt, Match, MetricPoint, Prediction, Rating, Score, Trial
from chessreg.registry.tables.state import RegistryState
from chessreg.registry.tables.types import Base
from chessreg.registry.tables.words import Annotation, Word
from chessreg.registry.tables.work import Job, JobState

__all__ = [
    "ActivationCache",
    "Annotation",
    "Artefact",
    "ArtefactLocation",
    "ArtefactState",
    "Attempt",
    "AttemptState",
    "Base",
    "Cause",
    "Checkpoint",
    "Conflict",
    "Dataset",
    "Engine",
    "FragmentRecord",
    "Game",
    "IllegalAttempt",
    "Intervention",
    "Job",
    "JobState",
    "KindRecord",
    "Machine",
    "Match",
    "MetricPoint",
    "OpeningBook",
    "Output",
    "Prediction",
    "Probe",
    "Rating",
    "RegistryState",
    "Run",
    "RunInput",
    "Sae",
    "Score",
    "Split",
    "Tokenizer",
    "Trial",
    "UnitRange",
    "Vector",
    "Word",
]
