"""The disjoint parts of a paper's games: for fitting, for choosing settings, and for reported results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from chessreg.errors import ChessregError
from chessreg.papers.plan import Request, Step

if TYPE_CHECKING:
    import numpy as np

    from chessreg.session import Session

SHORT_GAME_PLIES = 20  # plies: shorter games are often alike


def plan_parts(request: Request) -> Iterator[Step]:
    """Yield the step that splits the games.

    Probes and vectors are fitted on `fit`, settings are chosen on `validation`, and results are reported on `test`.
    """
    if request.fit == request.test:
        shares = "fit=0.5,validation=0.1,test=0.4"
    else:
        shares = "validation=0.1,test=0.9"
    yield Step("parts", "split", {"dataset": request.test, "parts": shares, "seed": 0}, "all tables")


def get_fit_dataset(request: Request) -> str:
    """Return the dataset (or part) on which probes, vectors and autoencoders are fitted."""
    return f"{request.fit}:fit" if request.fit == request.test else request.fit


def describe_shared_games(session: Session, request: Request) -> list[str]:
    """Return Markdown lines with the numbers of games that parts share with each other and with the model's training.

    Missing parts are left out.
    """
    from chessreg.experiments.settings.overlap import load_training_items

    inputs = session.inputs
    hashes: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    games_by_name = {
        "fit": get_fit_dataset(request),
        "validation": f"{request.test}:validation",
        "test": f"{request.test}:test",
    }
    training_items, reason = None, None
    try:
        if request.checkpoint:
            training_items, reason = load_training_items(inputs, inputs.reference("checkpoint", request.checkpoint))
        for name, reference in games_by_name.items():
            games, part = inputs.dataset(inputs.reference("dataset", reference))
            places = games.rows(part)
            hashes[name] = games.hashes[places], games.table(["plies"]).column("plies").to_numpy()[places]
    except ChessregError as error:
        return [f"Games shared between parts: not counted ({error.message})."]
    import numpy as np

    pairs = [("fit", "validation"), ("fit", "test"), ("validation", "test")]
    lines = [count_shared_games(f"{a} and {b}", hashes[b], [hashes[a][0]]) for a, b in pairs]
    if training_items is None and not request.checkpoint:
        lines.append("the models are trained on fit")
    elif training_items is None:
        lines.append(f"the model's training games are unknown: {reason}")
    else:
        training = [np.asarray(games.hashes[places]) for games, places in training_items]
        lines += [count_shared_games(f"training and {name}", hashes[name], training) for name in hashes]
        lines += [f"other training games are unknown: {reason}"] if reason else []
    return ["Whole games that two parts share (kinds refuse to report on them): " + "; ".join(lines) + "."]


def count_shared_games(item_name: str, part: tuple[np.ndarray, np.ndarray], other_parts: list[np.ndarray]) -> str:
    """Return as text how many games of a part (hashes uint64 [n], plies [n]) `other_parts` have, and how many are
    long."""
    import numpy as np

    hashes, plies = part
    is_shared = np.zeros(len(hashes), bool)
    for other in other_parts:
        is_shared |= np.isin(hashes, other)
    long_games = int((is_shared & (plies >= SHORT_GAME_PLIES)).sum())
    text = f"{item_name} {int(is_shared.sum()):,} of {len(hashes):,}"
    return f"{text}, {long_games:,} of them of {SHORT_GAME_PLIES} plies or more"
