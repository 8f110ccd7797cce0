"""Draw the figures of docs/results, and write its tables of published values and ours, from the rows in tests/fixtures.

    make figures

Figures are drawn by the code of `chessreg plot`. An SVG contains its rows as CSV, so that a test can compare them with
the fixtures without comparing pixels. Tables are written between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from chessreg.queries.catalogue import Plot, QueryColumn  # noqa: E402
from chessreg.queries.plot import draw_figure, write_figure  # noqa: E402
from chessreg.queries.published import list_published_values  # noqa: E402
from chessreg.queries.result import QueryResult  # noqa: E402
from tests.fixtures.davis import figures as davis  # noqa: E402
from tests.fixtures.junkin import figures as junkin  # noqa: E402
from tests.fixtures.karvonen import figures as karvonen  # noqa: E402

PAGES = ROOT / "docs" / "results"
GPU = ROOT / "tests" / "gpu" / "results" / "nvidia-h200-2026-11-27"
Row = dict[str, Any]
Value = tuple[float, float, float]
"""A value and both ends of its 95 % interval."""

DARK = """<style>@media (prefers-color-scheme: dark) {
#patch_1 path, .legend path { fill: #1e2129 !important }
text { fill: #e4e6eb !important }
[style*="stroke: #000000"] { stroke: #c4c8d0 !important }
[style*="fill: #ffffff"] { fill: #1e2129 !important }
[style*="stroke: #0072b2"] { stroke: #56a8e0 !important }
[style*="fill: #0072b2"] { fill: #56a8e0 !important }
}</style>"""
"""Rules for a dark background. The figure has its own background, so that it is readable on any page."""


@dataclass(frozen=True)
class ResultFigure:
    """A figure of a page: `docs/results/<paper>-<name>.svg`. `unit` is the unit of the plot's y."""

    paper: str
    name: str
    plot: Plot
    unit: str
    rows: Callable[[], Iterable[Row]]

    @property
    def path(self) -> Path:
        return PAGES / f"{self.paper}-{self.name}.svg"

    def table(self) -> pa.Table:
        """Return the figure's rows, rounded to six significant digits."""
        rows = [
            {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}
            for row in self.rows()
        ]
        return pa.Table.from_pylist(rows)

    def draw(self) -> None:
        table = self.table()
        result = QueryResult(table, {}, described=(QueryColumn(self.plot.y, self.unit, ""),))
        write_figure(draw_figure(result, self.plot), self.path)
        svg = re.sub(r"(?m)^ +", "", self.path.read_text(encoding="utf-8"))
        data = f"<desc>{escape(rows_as_csv(table))}</desc>"
        self.path.write_text(re.sub(r"(<svg [^>]*>)", rf"\1\n{data}\n{DARK}", svg, count=1), encoding="utf-8")


def rows_as_csv(table: pa.Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(row.values() for row in table.to_pylist())
    return text.getvalue()


def rows_of_svg(path: Path) -> list[dict[str, str]]:
    """Return the rows that an SVG contains."""
    [data] = re.findall(r"<desc>(.*?)</desc>", path.read_text(encoding="utf-8"), re.DOTALL)
    return list(csv.DictReader(io.StringIO(unescape(data))))


def interval_of(name: str, value: Value) -> Row:
    """Return a value under its name, with both ends of its interval."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), map(float, value), strict=True))


# -- Karvonen 2024 --


def published(paper: str, table: str, row: str, column: str) -> float:
    """Return a published number. Raises ValueError unless exactly one number has this place."""
    [value] = {
        each.value
        for each in list_published_values()
        if (each.paper, each.table, each.row, each.column) == (paper, table, row, column) and not each.is_lost
    }
    assert value is not None
    return value


def board_accuracy_by_layer() -> Iterator[Row]:
    """Accuracy on validation games by layer, of every seed; and the values of the paper, which counts layers from 1."""
    names = {
        (False, False): "trained model",
        (True, False): "random-init control",
        (False, True): "trained model, the paper's fit",
    }
    for row in karvonen.PROBES:
        if row["split"] == "validation":
            model = names[row["untrained"], row["published"]]
            yield {
                "model": model,
                "run": row["run"],
                "layer": row["layer"],
                "accuracy": 100 * row["correct"] / row["n"],
            }
    for model, of in (("paper: trained", "8 layer"), ("paper: random-init", "8 layer randomized")):
        for layer in range(8):
            value = published("Karvonen 2024", "Figure 3", f"{of}, layer {layer + 1}", "square")
            yield {"model": model, "run": "paper", "layer": layer, "accuracy": value}


def share_of_texts(condition: str, is_published: bool, column: int) -> Value:
    """Return the share of texts that are legal, in %: column 0 on the modified board, column 1 on the original one."""
    these = karvonen.texts(condition, "last", is_published)
    return ratio_by_game(these[:, column], these[:, 2])


def ratio_by_game(above: np.ndarray, below: np.ndarray) -> Value:
    low, high = 100 * karvonen.by_game(np.stack([above, below], 1))
    return 100 * float(above.sum() / below.sum()), float(low), float(high)


CONDITIONS = {
    "clean": "no edit",
    "edit": "edit",
    "random": "random direction",
    "shuffled": "another piece's direction",
    "wrong-layer": "wrong layers",
    "sham": "edit of scale 0",
}


def board_edits() -> Iterator[Row]:
    for column, board in enumerate(("board without the piece", "real board")):
        for is_published, scale in ((False, "scale 50, from a sweep"), (True, "scale 1.5, as published")):
            for condition, name in CONDITIONS.items():
                value = share_of_texts(condition, is_published, column)
                yield {"condition": name, "scale": scale, "board": board} | interval_of("legal_texts", value)


CAUSES: dict[str, tuple[tuple[int, ...], dict[str, float]]] = {
    "all 33 moves": ((0, 1, 2), {}),
    "moves 1-11": ((0,), {}),
    "moves 12-22": ((1,), {}),
    "moves 1-22": ((0, 1), {}),
    "moves 23-33": ((2,), {}),
    "all, fitted on half of the games": ((0, 1, 2), {"held_out": 0.55}),
    "all, fitted in 15 epochs, not 5": ((0, 1, 2), {"epochs": 15}),
    "moves 23-33, fitted on them alone": ((2,), {"first_ply": 44}),
}


def board_minus_control() -> Iterator[Row]:
    for name, (thirds, fit) in CAUSES.items():
        model, control = (karvonen.squares(untrained, thirds, **fit) for untrained in (False, True))
        value = ratio_by_game(model[:, 0] - control[:, 0], model[:, 1])
        yield {"probe": name} | interval_of("model_minus_control", value)


def skill_vectors() -> Iterator[Row]:
    for source, arms in (("contrastive", karvonen.ARMS), ("probe", karvonen.OF_PROBE)):
        for layers, rounded, _ in arms:
            for opening in ("random:20", "standard") if source == "contrastive" else ("random:20",):
                [scale] = {
                    game["scale"] for game in karvonen.GAMES
                    if (game["source"], game["layers"], game["policy"]) == (source, layers, "legal")
                    and not game["choice"] and abs(game["scale"] - rounded) < 0.1
                }  # fmt: skip
                sign = "negative" if scale < 0 else "positive"
                kind = "vector" if source == "contrastive" else "probe direction"
                arm = f"{sign} {kind}, {opening.partition(':')[0]} openings"
                yield {"arm": arm, "minus": "minus no edit"} | interval_of(
                    "score", minus_unedited(source, layers, scale, opening)
                )
                for control in ("random", "shuffled"):
                    name = "minus random directions" if control == "random" else "minus vectors of shuffled labels"
                    value = karvonen.beyond(layers, scale, control, opening, source)
                    yield {"arm": arm, "minus": name} | interval_of("score", value)


def minus_unedited(source: str, layers: str, scale: float, opening: str) -> Value:
    """Return the score of an edit minus that of no edit. Games are paired by opening, if openings differ."""
    arm = karvonen.points(False, source, layers, scale, opening)
    if opening == "standard":
        plain = karvonen.points(False, "none", opening=opening)
        return (
            float(np.mean([*arm.values()]) - np.mean([*plain.values()])),
            *map(float, karvonen.unpaired(arm, plain)),
        )
    pairs = np.array([arm[number] - karvonen.PLAIN[number] for number in karvonen.PLAIN])
    return (float(pairs.mean()), *map(float, karvonen.interval(pairs)))


# -- Davis 2026 --

TYPES = ("None", "Random", "Shuffled", "Patch", "Probe", "SAE-Probe", "CD-Probe", "DM-Probe")


def mass(kind: str, scale: float | None, layer: int, column: int) -> Value:
    """Return the mean legal move mass of edits: column 1 on the original board, column 2 on the target board."""
    games = davis.edited(kind, scale, layer)
    return davis.ratio(
        np.array([game[column] for game in games.values()]), np.array([game[0] for game in games.values()])
    )


def target_mass() -> Iterator[Row]:
    for layer in (7, 4):
        for kind in TYPES:
            for scale in (0.5, 8.0):
                of = None if kind == "None" else scale
                if davis.edited(kind, of, layer):
                    row = {"type": kind, "scale": f"α {scale:g}", "layer": f"layer {layer}"}
                    yield row | interval_of("target_mass", mass(kind, of, layer, 2))


def paired_differences() -> Iterator[Row]:
    for one, other in (("Probe", "Random"), ("Probe", "Shuffled"), ("Probe", "SAE-Probe"), ("Probe", "CD-Probe"),
                       ("CD-Probe", "DM-Probe")):  # fmt: skip
        for layer in (7, 4):
            value = davis.difference(one, other, davis.STRONG, layer=layer)
            yield {"pair": f"{one} minus {other}", "layer": f"layer {layer}"} | interval_of("target_mass", value)


def probes_and_controls() -> Iterator[Row]:
    for phase in davis.PHASES:
        right, squares = davis.read_by(phase, "all")
        for number, name in enumerate(("trained model", "control 1", "control 2", "control 3")):
            value = davis.ratio(right[number], squares)
            yield {"token": phase.replace("-", " "), "model": name} | interval_of("accuracy", value)
        rows = davis.table("embeddings")
        own = (rows["phase"] == phase) & (rows["control"] == "model")
        value = davis.ratio(100.0 * rows["majority"][own], rows["n"][own])
        yield {"token": phase.replace("-", " "), "model": "most frequent piece"} | interval_of("accuracy", value)


def cosines_by_block() -> Iterator[Row]:
    for block in davis.BLOCKS:
        values = {
            "same position": davis.cosine("same position", block),
            "same position, other last move": davis.other_last_moves(block),
            "other position, same last move": davis.cosine("same last move", block),
        }
        for name, value in values.items():
            yield {"states": name, "block": block} | interval_of("centred_cosine", value)
    rows = davis.table("markov_control")
    for block in range(3):
        for column, name in (("centred", "same position"), ("same_last", "other position, same last move")):
            known = rows[column][rows["layer"] == block] / 1000
            known = known[np.isfinite(known)]
            value = davis.ratio(known, np.ones(len(known)))
            yield {"states": f"random-init: {name}", "block": block} | interval_of("centred_cosine", value)


# -- Junkin and Nathanson 2025 --


@cache
def asked_models() -> tuple[list[junkin.Model], list[junkin.Model]]:
    """Return the models that were trained completely, and the models stopped for equal compute."""
    asked = junkin.models("accuracy")
    whole = [m for m in asked if m[3] == max(n[3] for n in asked if n[1] == m[1])]
    return whole, [m for m in asked if m not in whole]


def size_of(model: junkin.Model) -> str:
    return f"{model[1].replace('x', '×')}, seed {model[2]}"


def best_moves() -> Iterator[Row]:
    whole, stopped = asked_models()
    for model in (*whole, *stopped):
        rows = junkin.of("accuracy", model)
        name = junkin.NAMES[model[0]] + (", equal compute" if model in stopped else "")
        value = junkin.ratio(rows["legal_best"], rows["n"], 100)
        yield {"size": size_of(model), "model": name} | interval_of("best_move", value)
    for size in dict.fromkeys(map(size_of, whole)):
        rows = junkin.of("accuracy", whole[0])
        value = junkin.ratio(rows["uniform"], rows["n"], 0.1)
        yield {"size": size, "model": "uniform choice"} | interval_of("best_move", value)


def differences_of_models() -> Iterator[Row]:
    for figure in junkin.figures():
        if found := re.fullmatch(r"(bidirectional minus causal|FEN causal minus PGN causal), (\S+ seed \d)(?:, (.+))?: "
                                 r"best move, of the legal ones, points", figure.quantity):  # fmt: skip
            name, size, equal = found.groups()
            if equal is not None:
                name = f"positions minus games, {equal.partition(' (')[0]}"
            value = (figure.value, figure.low, figure.high)
            yield {"size": size.replace(" seed", ", seed"), "difference": name} | interval_of("best_move", value)


BANDS = tuple((low, low + 400) for low in range(400, 2800, 400))


def puzzles_by_rating() -> Iterator[Row]:
    lines = junkin.table("lines")
    for puzzles, wanted in (("all puzzles", lines["rating"] > 0), ("puzzles without mates", lines["mate"] == 0)):
        for low, high in BANDS:
            band = wanted & (lines["rating"] >= low) & (lines["rating"] < high)
            row = {"rating": f"{low}–{high - 1}", "puzzles": puzzles}
            for model in junkin.models("puzzles"):
                if model[1] == "6x192":
                    first = junkin.of("puzzles", model)["first"][band]
                    value = junkin.ratio(first, np.ones(len(first)), 100)
                    yield row | {"model": junkin.NAMES[model[0]]} | interval_of("first_move", value)
            chance = 1 / lines["legal"][band]
            value = junkin.ratio(chance, np.ones(len(chance)), 100)
            yield row | {"model": "uniform choice"} | interval_of("first_move", value)


def answers_by_prompt() -> Iterator[Row]:
    for prompt in [junkin.PLAIN, *(f"junkin-{number}" for number in range(1, 7))]:
        tuned_on = junkin.PLAIN if prompt == junkin.PLAIN else junkin.LISTED
        for tuned, name in (("before", "before tuning"), (tuned_on, "after tuning")):
            rows = junkin.answers(tuned, prompt)
            value = junkin.ratio(rows["legal"], rows["n"], 100)
            label = f"{prompt} (no list)" if prompt == junkin.PLAIN else prompt
            yield {"prompt": label, "model": name} | interval_of("legal_answers", value)


FIGURES = (
    ResultFigure("karvonen", "layers", Plot(
        "squares read by board probes", "layer", "accuracy", series=("model",), spread="run"
    ), "%", board_accuracy_by_layer),
    ResultFigure("karvonen", "causes", Plot(
        "squares read: trained model minus random-init control", "probe", "model_minus_control", form="dots"
    ), "points", board_minus_control),
    ResultFigure("karvonen", "edits", Plot(
        "texts that begin with a legal move, after an edit at the last token", "condition", "legal_texts", form="dots",
        series=("scale",), panels=("board",)
    ), "%", board_edits),
    ResultFigure("karvonen", "skill", Plot(
        "score of an edit minus the score of its control", "arm", "score", form="dots", series=("minus",)
    ), "points per game", skill_vectors),
    ResultFigure("davis", "edits", Plot(
        "probability of moves that are legal on the target board", "type", "target_mass", form="dots",
        series=("scale",), panels=("layer",)
    ), "", target_mass),
    ResultFigure("davis", "differences", Plot(
        "paired differences between types of edit, α 8", "pair", "target_mass", form="dots", series=("layer",)
    ), "difference", paired_differences),
    ResultFigure("davis", "probes", Plot(
        "squares read by joint probes after the final LayerNorm", "token", "accuracy", form="dots", series=("model",)
    ), "%", probes_and_controls),
    ResultFigure("davis", "markov", Plot(
        "similarity of states", "block", "centred_cosine", series=("states",)
    ), "", cosines_by_block),
    ResultFigure("junkin", "moves", Plot(
        "best moves on 50,000 unseen positions", "size", "best_move", form="dots", series=("model",)
    ), "%", best_moves),
    ResultFigure("junkin", "differences", Plot(
        "best move among the legal ones: differences between models", "size", "best_move", form="dots",
        series=("difference",)
    ), "points", differences_of_models),
    ResultFigure("junkin", "puzzles", Plot(
        "first moves of puzzles, models of 6×192", "rating", "first_move", form="dots", series=("model",),
        panels=("puzzles",)
    ), "%", puzzles_by_rating),
    ResultFigure("junkin", "prompts", Plot(
        "legal answers of the language model by prompt", "prompt", "legal_answers", form="dots", series=("model",)
    ), "%", answers_by_prompt),
)  # fmt: skip


# -- Tables of published values and ours --


@dataclass(frozen=True)
class Comparison:
    """A row of a page's first table. `published` is a number of the paper, after `bound` if the paper gives a bound."""

    quantity: str
    published: float
    ours: Value | float
    n: str
    differs: str
    decimals: int
    bound: str = ""

    @property
    def line(self) -> str:
        value, *ends = self.ours if isinstance(self.ours, tuple) else (self.ours,)
        shown = rounded(value, self.decimals)
        if ends:
            shown += f" [{rounded(ends[0], self.decimals)}, {rounded(ends[1], self.decimals)}]"
        difference = rounded(value - self.published, self.decimals, sign="+")
        paper = f"{self.bound}{rounded(self.published, self.decimals)}"
        return f"| {self.quantity} | {paper} | {shown} | {self.n} | {difference} | no: {self.differs} |"


def rounded(value: float, decimals: int, sign: str = "-") -> str:
    text = f"{value:{sign}.{decimals}f}"
    if not text.strip("+-0."):  # no "-0.0"
        text = text.lstrip("+-")
    return text.replace("-", "−")


HEAD = ("| quantity | published | ours | n | ours − published | comparable |", "| --- | --- | --- | --- | --- | --- |")


def karvonen_comparisons() -> Iterator[Comparison]:
    of_paper = lambda *place: published("Karvonen 2024", *place)
    trained, random = (of_paper("Table 1", f"8 layer {weights}", "square") for weights in ("trained", "randomized"))
    _, ours, games = karvonen.accuracy(False)
    _, controls, games_of_control = karvonen.accuracy(True)
    probes = f"{len(ours)} seeds, {len(games):,} games"
    for name, value, read in (("trained", trained, games), ("random-init", random, games_of_control)):
        sums = np.array([*read.values()], np.float64)
        yield Comparison(f"Table 1: squares read, {name}, %", value, ratio_by_game(sums[:, 0], sums[:, 1]), probes,
                         "fit", 1)  # fmt: skip
    beyond = np.array([games[game] / len(ours) - games_of_control[game] / len(controls) for game in games])
    every = np.array([squares for _, squares in games.values()]) / len(ours)
    yield Comparison("Table 1: trained minus random-init, points", trained - random,
                     ratio_by_game(beyond[:, 0], every), probes, "fit", 2)  # fmt: skip
    value = skill_accuracy("skill, pooled, whole games", False)
    yield Comparison("Table 1: class of skill read, %", of_paper("Table 1", "8 layer trained", "Elo"), value,
                     f"{skill_games('skill, pooled, whole games', False):,} games", "834 games per class",
                     1)  # fmt: skip
    edited = [row for row in karvonen.EDITS if (row["published"], row["setting"], row["token_mask"], row["condition"])
              == (False, "", "last", "edit")]  # fmt: skip
    states = f"{sum(row['states'] for row in edited):,} states, {len(edited)} games"
    for name, column, condition, is_published, differs in (
        ("no edit, modified board", 0, "clean", False, "texts per state"),
        ("edit at scale 1.5, modified board", 0, "edit", True, "texts per state"),
        ("edit, modified board", 0, "edit", False, "scale 50, texts per state"),
        ("edit, original board", 1, "edit", False, "scale 50, texts per state"),
    ):
        place = "with intervention" if condition == "edit" else "no intervention"
        value = of_paper("Table 2", f"8 layer {place}", f"{'original' if column else 'modified'} board")
        yield Comparison(f"Table 2: legal moves, {name}, %", value, share_of_texts(condition, is_published, column),
                         states, differs, 1)  # fmt: skip
    best = karvonen.texts("best", "last", True, "scales")
    yield Comparison("Appendix D: best scale of each state, modified board, %",
                     of_paper("Appendix D", "best scale per state", "modified board"),
                     ratio_by_game(best[:, 0], best[:, 2]), states, "other scales", 1)  # fmt: skip
    plain_at_level_0 = (karvonen.LEVEL_0, "standard", "none")
    level = [game["points"] for game in karvonen.RETRIED
             if (game["opponent"], game["opening"], game["source"]) == plain_at_level_0]  # fmt: skip
    none = of_paper("Table 3", "8 layer standard", "none")
    yield Comparison("Table 3: score against Stockfish level 0, standard opening, %", none,
                     100 * float(np.mean(level)), f"{len(level)} games", "1,000 nodes per move", 1)  # fmt: skip
    plain = of_paper("Table 3", "8 layer random", "none")
    for sign, (layers, scale, name) in zip(("negative", "positive"), karvonen.ARMS, strict=True):
        value = of_paper("Table 3", "8 layer random", sign) - plain
        ours_ = tuple(100 * end for end in minus_unedited("contrastive", layers, scale, "random:20"))
        yield Comparison(f"Table 3: {sign} vector minus no edit, random openings, points", value, ours_,
                         f"{len(karvonen.PLAIN)} games",
                         f"opponent, {name.replace('-0.8', '−0.8')}", 1)  # type: ignore[arg-type]  # fmt: skip


def skill_rows(probe: str, untrained: bool) -> list[Row]:
    return [
        row for row in karvonen.SKILLS if (row["probe"], row["untrained"], row["played"]) == (probe, untrained, False)
    ]


def skill_games(probe: str, untrained: bool) -> int:
    return len({row["game"] for row in skill_rows(probe, untrained)})


def skill_accuracy(probe: str, untrained: bool) -> Value:
    """Return the share of test games whose class of skill a probe reads correctly, in %."""
    rows = skill_rows(probe, untrained)
    _, place = np.unique([row["game"] for row in rows], return_inverse=True)
    right, every = (np.bincount(place, [row[column] for row in rows]) for column in ("correct", "n"))
    return ratio_by_game(right, every)


def davis_comparisons() -> Iterator[Comparison]:
    of_paper = lambda *place: published("Davis 2026", *place)
    rows = davis.table("legal")
    _, place = np.unique(rows["game"], return_inverse=True)
    right, every = (np.bincount(place, rows[column].astype(np.float64)) for column in ("correct", "n"))
    value: Value = tuple(100 * end for end in davis.ratio(right, every))  # type: ignore[assignment]
    yield Comparison("Table 2: legal greedy tokens, %", of_paper("Table 2", "our model", "legal moves"), value,
                     f"{len(every):,} games", "strict rule", 1)  # fmt: skip
    best = max(
        (davis.read_by(phase, "all") for phase in davis.PHASES), key=lambda read: read[0][0].sum() / read[1].sum()
    )
    yield Comparison("Table 5: squares read by the linear probe, best layer, %",
                     of_paper("Table 5", "best layer (7 or 8)", "accuracy"), davis.ratio(best[0][0], best[1]),
                     f"{len(best[1]):,} games", "after the final LayerNorm", 1, "> ")  # fmt: skip
    games = f"{len(davis.edited('Probe', 8.0, 7)):,} games"
    for figure, kind, board, scale, layer, differs in (
        ("Figure 5", "None", "original", None, 7, "model and games"),
        ("Figure 5", "Probe", "target", 0.5, 7, "length of residuals"),
        ("Figure 5", "Probe", "target", 8.0, 7, "α 8"),
        ("Figure 5", "Patch", "original", 0.5, 7, "patch is scaled"),
        ("Figure 6", "None", "target", None, 7, "model and games"),
        ("Figure 6", "SAE-Probe", "target", 8.0, 7, "SAE, α 8, layer 7"),
        ("Figure 6", "CD-Probe", "target", 8.0, 7, "SAE, α 8, layer 7"),
    ):
        name = f"{figure}: {board} mass, {kind}" + ("" if scale is None else f", α {scale:g}")
        value = mass(kind, scale, layer, 1 if board == "original" else 2)
        yield Comparison(name, of_paper(figure, f"{kind}, {board} board", "mean"), value, games, differs, 3)
    positions = (davis.table("markov_prefixes")["layer"] == 0).sum()
    yield Comparison("Table 6: d of the Markov test, early layers", of_paper("Table 6", "early layers, at least", "d"),
                     davis.effect(0, "raw", "markov_prefixes"), f"{positions:,} positions", "positions", 2,
                     "≥ ")  # fmt: skip


def junkin_comparisons() -> Iterator[Comparison]:
    of_paper = lambda *place: published("Junkin 2025", *place)
    [bidirectional, causal, games] = (
        next(m for m in asked_models()[0] if m[:2] == (twin, "6x192")) for twin in ("bidirectional", "causal", "games")
    )
    asked, size = f"{junkin.of('accuracy', bidirectional)['n'].sum():,} positions", "6×192, 1.14 M decisions"
    best = {model: junkin.ratio(junkin.of("accuracy", model)["best"], junkin.of("accuracy", model)["n"], 100)
            for model in (bidirectional, games)}  # fmt: skip
    fen = of_paper("Section 4.3", "bidirectional FEN model, more than", "best move")
    pgn = of_paper("Section 4.3", "PGN model", "best move")
    yield Comparison(
        "Section 4.3: best move, bidirectional positions, %", fen, best[bidirectional], asked, size, 1, "> "
    )
    yield Comparison("Section 4.3: best move, games, %", pgn, best[games], asked, size, 1)
    yield Comparison("Section 4.3: best move, positions minus games, points", fen - pgn,
                     junkin.difference(bidirectional, games, "best", 100), asked, f"{size}, equal size", 1,
                     "> ")  # fmt: skip
    for steps, column in (("4,000 steps", 8.2), ("596,000 steps", 1221)):
        value = of_paper("The author's log", steps, "best move, bidirectional minus causal")
        yield Comparison(f"log, {column:,} M positions: best move, bidirectional minus causal, points", value,
                         junkin.difference(bidirectional, causal, "best", 100), asked, size, 2)  # fmt: skip
    for model in (bidirectional, causal):
        rows = junkin.of("accuracy", model)
        yield Comparison(f"log: cross-entropy of the best move, {model[0]}, nats",
                         of_paper("The author's log, 596,000 steps", model[0], "mean cross-entropy"),
                         junkin.ratio(rows["nats"], rows["n"], 1e-3), asked, size, 2)  # fmt: skip
    rows = junkin.answers(junkin.LISTED, junkin.LISTED)
    yield Comparison("Section 4.3: best move, Llama with a list of legal moves, %",
                     of_paper("Section 4.3", "Llama", "best move, fine-tuned"),
                     junkin.ratio(rows["best"], rows["n"], 100), f"{rows['n'].sum():,} positions",
                     "4×128, no pretraining", 1)  # fmt: skip
    level = junkin.rungs(bidirectional)[junkin.LEVEL.format(0)]
    yield Comparison("sweep: won against Stockfish level 0, bidirectional positions, %",
                     of_paper("sweep: FEN bidirectional, 200,000 steps", "level, 0", "won"), junkin.won(level)[0],
                     f"{len(level['points'])} games",
                     "no help, 1,000 nodes", 0)  # fmt: skip


COMPARISONS = {"karvonen": karvonen_comparisons, "davis": davis_comparisons, "junkin": junkin_comparisons}


def published_table(paper: str) -> str:
    return "\n".join(["", *HEAD, *(each.line for each in COMPARISONS[paper]()), "", ""])


# -- measurements on a GPU --


@cache
def gpu_rows(report: str, step: str) -> dict[str, Row]:
    """Return the measurements of a step of a committed GPU report, by their names."""
    content = json.loads((GPU / f"{report}.json").read_text(encoding="utf-8"))
    [rows] = [each["rows"] for each in content["steps"] if each["name"] == step]
    return {row["measurement"]: row for row in rows}


def gpu_goals() -> Iterator[tuple[str, str, str]]:
    """Yield each goal, its measured value and the outcome."""
    correctness, best = gpu_rows("checks", "correctness"), "torch.compile, 100 rows at once"
    models = [row["relative"] for name, row in correctness.items() if "float32" in name and "SAE" not in name]
    sae = correctness["SAE step, float32"]["relative"]
    mfu = gpu_rows("checks", "training speed, 12 x 768")[best]["mfu"]
    caching = max(row["share_of_forward"] for row in gpu_rows("speeds", "caching").values())
    steps = gpu_rows("speeds", "sparse autoencoder")["TF32, all rows at once"]["share_of_peak"]
    yield from (
        (goal, measured, "met" if is_met else "missed")
        for goal, measured, is_met in (
            ("logits, residuals, edits and decoding in float32 differ from the CPU's by at most 1e-4, relative",
             f"{max(models):.1e}", max(models) <= 1e-4),
            ("gradients of an SAE step in float32 differ from the CPU's by at most 1e-4, relative",
             f"{sae:.1e}", sae <= 1e-4),
            ("training of a 12×768 GPT-2 at 40 % of the peak (MFU)", f"{100 * mfu:.1f} %", mfu >= 0.4),
            ("caching at 0.8 of the speed of bare forward passes", f"{caching:.2f}", caching >= 0.8),
            ("SAE steps at half of the TF32 peak", f"{steps:.2f}", steps >= 0.5),
        )
    )  # fmt: skip


def gpu_speeds() -> Iterator[tuple[str, str, str]]:
    """Yield the measured quantity, its precision, and its speed."""
    for shape, report in (("12 x 768", "checks"), ("8 x 512", "training-speed")):
        for way in ("eager", "torch.compile"):
            row = gpu_rows(report, f"training speed, {shape}")[f"{way}, 100 rows at once"]
            name = f"training a {shape.replace(' x ', '×')} GPT-2, {way}"
            yield name, "bf16", f"{row['tokens_per_s']:,.0f} tokens/s, {100 * row['mfu']:.1f} % MFU"
    saes = gpu_rows("speeds", "sparse autoencoder")
    for precision, name in (("float32", "float32"), ("TF32", "TF32"), ("bfloat16", "bf16")):
        row = saes[f"{precision}, all rows at once"]
        yield "SAE step, 768 → 12,288, 4,096 tokens", name, f"{row['tokens_per_s']:,.0f} tokens/s"
    for precision, name in (("float32", "float32"), ("TF32", "TF32"), ("bfloat16", "bf16")):
        row = saes[f"{precision}, model and all blocks in one pass"]
        yield "12×768 model and SAEs of its 12 blocks in one pass", name, f"{row['tokens_per_s']:,.0f} tokens/s"
    for precision in ("float32", "TF32"):
        row = gpu_rows("speeds", "caching")[f"{precision}, 256 games at once"]
        yield "caching of all 8 blocks, 8×512", precision, f"{row['rows_per_s']:,.0f} positions/s"
    for report, without in (("checks", ""), ("decoding", " without cuDNN's attention")):
        for precision, name in (("float32", "float32"), ("bfloat16", "bf16")):
            for games in (1, 512):
                row = gpu_rows(report, "decoding")[f"{precision}, {games} games at once"]
                noun = "game" if games == 1 else "games at once"
                yield f"decoding, 8×512, {games} {noun}{without}", name, f"{row['ms_per_token']:.1f} ms per token"
    row = gpu_rows("checks", "legal moves")["float32, 512 positions at once"]
    yield "probability of every legal move, 8×512", "float32", f"{row['positions_per_s']:,.0f} positions/s"


def gpu_model() -> Iterator[tuple[str, str]]:
    """Yield facts of the model that was trained."""
    rows = gpu_rows("training", "training")
    trained, loss, legal = (rows[name] for name in ("training", "held-out loss", "first-try legal moves"))
    yield "parameters", f"{trained['parameters']:,}"
    tokens = f"{trained['tokens'] / 1e6:,.0f} million tokens, {trained['epochs']:.1f} epochs"
    yield "training", f"{tokens}, {trained['seconds']:.0f} s"
    yield "held-out loss", f"{loss['nats_per_token']:.3f} nats per token, {loss['games']} games"
    yield "first-try legal moves", f"{100 * legal['legal_share']:.1f} % of {legal['positions']:,} held-out positions"
    yield "mean probability of a legal move", f"{legal['legal_move_mass']:.3f}"


GPU_TABLES: dict[str, tuple[tuple[str, ...], Callable[[], Iterable[tuple[str, ...]]]]] = {
    "goals": (("goal", "measured", "outcome"), gpu_goals),
    "speeds": (("measurement", "precision", "speed"), gpu_speeds),
    "model": (("", ""), gpu_model),
}


def gpu_table(name: str) -> str:
    head, rows = GPU_TABLES[name]
    lines = [head, ("---",) * len(head), *rows()]
    return "\n".join(["", *(f"| {' | '.join(line)} |" for line in lines), "", ""])


def write_tables(page: Path, tables: dict[str, str]) -> None:
    """Write each table between its marks on the page."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        assert len(junkin.marked(name).findall(text)) == 1, (page, name)
        text = junkin.marked(name).sub(lambda _: table, text)  # noqa: B023
    page.write_text(text, encoding="utf-8")


def main() -> None:
    for figure in FIGURES:
        figure.draw()
        print(f"{figure.path.relative_to(ROOT)}: {figure.path.stat().st_size:,} bytes")
    for paper in COMPARISONS:
        write_tables(PAGES / f"{paper}.md", {"published": published_table(paper)})
    write_tables(ROOT / "docs" / "gpu.md", {name: gpu_table(name) for name in GPU_TABLES})
    junkin.write()


if __name__ == "__main__":
    main()
