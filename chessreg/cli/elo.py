"""`chessreg elo`: Elo and a sequential test from the counts of a match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, add_json_option, pass_home, print_output
from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.queries.stats import Estimate

PAIR_POINTS = ("0", "½", "1", "1½", "2")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("counts", metavar="WINS DRAWS LOSSES", nargs=-1, type=int, required=True)
@click.option(
    "--sprt",
    metavar="LOW,HIGH",
    help="Also test the Elo difference HIGH against LOW (logistic Elo), as Fishtest does. Left out: no test.",
)
@click.option("--alpha", type=float, default=0.05, show_default=True, help="P(accepting HIGH if LOW is true).")
@click.option("--beta", type=float, default=0.05, show_default=True, help="P(accepting LOW if HIGH is true).")
@add_json_option
@pass_home
def elo(home: Home, counts: tuple[int, ...], sprt: str | None, alpha: float, beta: float) -> None:
    """Print the Elo difference of a match from its counts, with a 95 % interval. Does not read a registry.

    Three counts are wins, draws and losses. Five are pairs of games from one opening with both colors: the numbers of
    pairs that gave 0, ½, 1, 1½ and 2 points. Pairs give narrower intervals.

    \b
    chessreg elo 120 60 90
    chessreg elo 12 40 101 55 17 --sprt 0,10
    """
    from chessreg.queries.match_counts import MatchCounts, make_elo_test

    match = MatchCounts(counts[::-1] if len(counts) == 3 else counts)
    score, difference = match.score(), match.elo()
    normalized_elo, superiority = match.compute_normalized_elo(), match.superiority()
    exact: dict[str, Any] = describe_counts(counts)
    row: dict[str, Any] = {**exact, "score": score.format_value(), "Elo": write_elo(difference)}
    exact |= {"score": score._asdict(), "elo": difference._asdict()}
    exact |= {"normalized_elo": normalized_elo, "likelihood_of_superiority": superiority}
    if normalized_elo is not None and superiority is not None:
        row |= {"normalized Elo": f"{normalized_elo:+z.1f}", "likelihood of superiority": f"{superiority:.3f}"}
    if sprt is not None:
        low, high = parse_bounds(sprt)
        test = make_elo_test(low, high, alpha, beta)
        ratio, (lower, upper) = match.log_likelihood_ratio(low, high), test.bounds
        decision = test.decision(match.counts, match.values)
        exact["sprt"] = {"low": low, "high": high, "llr": ratio, "bounds": [lower, upper], "decision": decision or None}
        outcome = {"high": f"{high:g} Elo accepted", "low": f"{low:g} Elo accepted"}.get(decision, "undecided")
        row[f"SPRT {low:g}, {high:g}"] = f"LLR {ratio:+z.2f} [{lower:.2f}, {upper:.2f}]: {outcome}"
    print_output(home, exact if home.json else row)


def write_elo(difference: Estimate) -> str:
    """Return an Elo difference with its interval, or its only bound if all games were lost or won."""
    if difference.value is not None:
        return difference.format_value("+")
    return f"≤ {difference.high:+z.0f}" if difference.low is None else f"≥ {difference.low:+z.0f}"


def describe_counts(counts: tuple[int, ...]) -> dict[str, Any]:
    """Return name → count: wins, draws and losses, or pairs of games by their points."""
    if len(counts) == 3:
        return dict(zip(("wins", "draws", "losses"), counts, strict=True))
    return {f"pairs with {points} points": count for points, count in zip(PAIR_POINTS, counts, strict=True)}


def parse_bounds(text: str) -> tuple[float, float]:
    """Return the two Elo differences of `--sprt LOW,HIGH`. Raises BadInputError."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise BadInputError(f"--sprt {text!r} is not two Elo differences", "--sprt 0,10") from None
    return low, high
