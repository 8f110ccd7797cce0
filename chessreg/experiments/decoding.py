"""`decoding`: a model's answers to positions, teacher-forced and autoregressive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import chess
import numpy as np
from pydantic import BaseModel, Field

from chessreg.encodings.prompts import PromptEncoding
from chessreg.errors import BadInputError
from chessreg.experiments.move_accuracy import has_form
from chessreg.experiments.settings.prompts import PromptSpec, draw_sample, load_labelled_positions
from chessreg.games.boards.boardframe import BoardFrame, Role
from chessreg.noise import Stream, uniform
from chessreg.registry import tables
from chessreg.runs.cost import TOKENS_PER_MOVE, count_reading_operations
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import AtMost, CheckpointRef, DatasetRef, ExecutionOptions

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

TEACHER_FORCED, AUTOREGRESSIVE = "teacher-forced", "autoregressive"  # the names of the two modes
DISTANCE = "distance"  # prefix of the names of sample counts
PROMPT_SETTINGS = ("template", "layout", "counters", "notation", "last_separator")


class DecodingSpec(PromptSpec):
    checkpoint: CheckpointRef = Field(description="the model, of prompts or of FENs")
    dataset: DatasetRef = Field(description="positions with best moves, or one part of them (NAME:PART)")
    positions: int = Field(
        12_800, ge=1, description="at most this many positions, drawn by the seed (paper D.5: 12,800)"
    )
    length: Literal["free", "answer"] = Field(
        "free",
        description="end of an autoregressive answer: where the model ends it, or, as in the author's "
        "code, after the number of tokens of the correct answer, which reveals its length",
    )
    samples: Annotated[int, AtMost(1000, "more samples add no information")] = Field(
        0,
        ge=0,
        description="sampled answers to each position, compared with the greedy one (author: 20); 0: none",
    )
    temperature: float = Field(0.6, gt=0, le=100, description="temperature of the samples (Llama 3.2's default: 0.6)")
    top_p: float = Field(
        0.9,
        gt=0,
        le=1,
        description="sample from the most probable tokens that together have this share (Llama 3.2's default: 0.9)",
    )

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        return idle if self.samples else idle | dict.fromkeys(("temperature", "top_p"), "no answer is sampled")


class DecodingOptions(ExecutionOptions):
    forward_positions: int = Field(128, ge=1, description="positions in one forward pass")


class AnswerRow(BaseModel):
    """Columns of an answer. The name is `teacher-forced` or `autoregressive`, item the position's row in the dataset,
    text the answer, and value 1 for the best move, else 0.

    If the answer does not fit the context, only prompt and game are set. A row `distance N` counts the samples (value)
    whose edit distance from the autoregressive answer (text) is N tokens.
    """

    prompt: str = Field(description="the prompt of the position: template, layout, counters, notation of moves")
    legal_list: bool = Field(description="whether the prompt lists the legal moves")
    game: str | None = Field(None, description="the game of the position, if it is known")
    valid: bool | None = Field(None, description="whether the text has the form of a move (in UCI: one of 1,968)")
    legal: bool | None = Field(None, description="whether it is a legal move")
    first: bool | None = Field(None, description="whether it is the first legal move of the list")
    near: bool | None = Field(None, description="whether it differs from the best move by at most one character")
    ended: bool | None = Field(
        None, description="whether the model ended its answer; teacher-forced: at the right place"
    )
    nats: float | None = Field(
        None, description="teacher-forced: cross-entropy of the best move and its end token, summed"
    )
    tokens: int | None = Field(None, description="tokens of the best move with its end token")


class Decoding(Kind):
    """Answers of a language model to positions in two greedy modes: teacher-forced and autoregressive.

    Junkin 2025, section 3.2 and Appendix D.5. Teacher-forced: each token is the most probable one after the correct
    answer's preceding tokens; the end token is not predicted. Autoregressive: each token follows the model's own
    tokens, until the model ends its answer or the answer is longer than any move. An answer counts as valid, legal or
    best only if the whole text matches. Templates other than the checkpoint's own are accepted. A FEN encoder answers
    with one action, so both modes give the same result. One unit is one position.
    """

    name = "decoding"
    example = "--checkpoint fen --dataset puzzles --positions 4"
    tables = ("prediction",)
    spec = DecodingSpec
    options = DecodingOptions
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"prediction": AnswerRow}
    queries = ("decoding modes", "prompt ablation", "edit distance of answers")

    def select_queries(self, spec: DecodingSpec) -> tuple[str, ...]:
        return tuple(query for query in self.queries if query != "edit distance of answers" or spec.samples)

    def units(self, spec: DecodingSpec, inputs: Inputs) -> int:
        available_positions = len(load_labelled_positions((spec.dataset,), inputs, "dataset")["fen"])
        inputs.note_shortage(spec, "positions", available_positions)
        return min(available_positions, spec.positions)

    def estimate(self, spec: DecodingSpec, inputs: Inputs) -> RunEstimate:
        positions = self.units(spec, inputs)
        written_tokens = positions * (1 + spec.samples) * TOKENS_PER_MOVE
        operations = count_reading_operations(spec.checkpoint, inputs, positions, written_tokens)
        return RunEstimate({"prediction": (2 + min(spec.samples, 3)) * positions}, operations=operations)

    def check(self, spec: DecodingSpec, inputs: Inputs) -> None:
        """Raise an error for a model of games, and for prompt settings of a model without prompts."""
        resolve_prompt_encoding(spec, inputs.encoding(spec.checkpoint))

    def run(self, task: Task[DecodingSpec, DecodingOptions]) -> None:
        spec, model = task.spec, task.model(task.spec.checkpoint)
        model.check_answers()
        model.check_writes()
        encoding = resolve_prompt_encoding(spec, model.encoding)
        positions = select_positions(spec, task.inputs)
        prompt_columns = {"prompt": describe_prompt(encoding), "legal_list": has_move_list(encoding)}
        for start in range(0, len(task.units), task.options.forward_positions):
            units = task.units[start : start + task.options.forward_positions]
            targets = [TargetMove.from_uci(positions["fen"][unit], positions["best"][unit]) for unit in units]
            answers = answer_positions(model, encoding, targets, spec.length == "answer")
            for unit, one, decoded_answers in zip(units, targets, answers, strict=True):
                for mode, answer in decoded_answers.items():
                    extra = AnswerRow(
                        **prompt_columns,
                        game=positions["game"][unit],
                        **(answer.columns(one, encoding) if answer else {}),
                    )
                    task.emit(
                        "prediction", unit, extra, item=positions["row"][unit], name=mode,
                        text=answer.text[:32] if answer else None,
                        value=float(answer.text == one.text(encoding)) if answer else None,
                    )  # fmt: skip
            if spec.samples:
                self.sample(task, model, encoding, dict(zip(units, targets, strict=True)), answers)
            task.done(*units)

    def sample(
        self,
        task: Task[DecodingSpec, DecodingOptions],
        model: LanguageModel,
        encoding: Encoding,
        targets: Mapping[int, TargetMove],
        answers: Sequence[Mapping[str, DecodedAnswer | None]],
    ) -> None:
        """Emit, for each position, the number of samples at each edit distance from its greedy answer.

        `targets` maps units to positions, and `answers` has their answers by mode, in the same order. A position
        without a greedy answer has no rows.
        """
        positions = select_positions(task.spec, task.inputs)
        columns = {"prompt": describe_prompt(encoding), "legal_list": has_move_list(encoding)}
        for (unit, target), answer in zip(targets.items(), answers, strict=True):
            greedy = answer[AUTOREGRESSIVE]
            if greedy is None:
                continue
            extra = AnswerRow(**columns, game=positions["game"][unit])
            item = positions["row"][unit]
            for distance, count in count_sample_distances(task.spec, model, encoding, target, greedy, item).items():
                task.emit("prediction", unit, extra, item=item, name=f"{DISTANCE} {distance}", text=greedy.text[:32],
                          value=float(count))  # fmt: skip

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return the position with the model's autoregressive answer and the best move as arrows."""
        spec = DecodingSpec(**inputs.read_spec(row))
        rows = {one.name: one for one in inputs.read_unit_rows(tables.Prediction, row)}
        positions, _ = inputs.positions(spec.dataset)
        [position] = positions.take([rows[AUTOREGRESSIVE].item], ["fen", "best"]).to_pylist()
        return [
            build_decoding_frame(
                position["fen"],
                chess.Move.from_uci(position["best"]),
                rows,
                resolve_prompt_encoding(spec, inputs.encoding(spec.checkpoint)),
            )
        ]


def select_positions(spec: DecodingSpec, inputs: Inputs) -> dict[str, list[Any]]:
    """Return the positions of a run, with the columns of `load_labelled_positions`."""
    positions = load_labelled_positions((spec.dataset,), inputs, "dataset")
    places = draw_sample(len(positions["fen"]), spec.positions, Stream.DECODING, spec.seed)
    return {name: [values[place] for place in places] for name, values in positions.items()}


def resolve_prompt_encoding(spec: DecodingSpec, model_encoding: Encoding) -> Encoding:
    """Return the encoding to use: the model's own, or for prompts the one with the settings of the spec.

    Raises BadInputError for a model of games, and for prompt settings of a model without prompts.
    """
    if isinstance(model_encoding, PromptEncoding):
        settings = spec.prompt_settings(model_encoding.settings)
        return model_encoding if settings == model_encoding.settings else model_encoding.with_settings(settings)
    if model_encoding.content == "history":
        raise BadInputError(
            f"{model_encoding.name} writes games, but the games before these positions are unknown",
            "for models of games: chessreg run move-accuracy --source-games GAMES",
        )
    for name in PROMPT_SETTINGS:
        if getattr(spec, name) is not None:
            raise BadInputError(
                f"--{name.replace('_', '-')} needs a model of prompts, and this one reads {model_encoding.name}",
                "leave it out",
            )
    return model_encoding


def describe_prompt(encoding: Encoding) -> str:
    """Return the prompt settings as text. A custom template is named by the beginning of its digest."""
    if not isinstance(encoding, PromptEncoding):
        return encoding.name
    settings = encoding.settings
    template_name = settings.template_name if settings.template_name != "own" else f"own {settings.digest[:8]}"
    changes = ["slashes"] * (settings.layout != "ruoss77") + ["counters blanked"] * (settings.counters == "blanked")
    changes += ["SAN"] * (settings.notation == "san") + ["last separator"] * settings.last_separator
    return ", ".join([template_name, *changes])


def has_move_list(encoding: Encoding) -> bool:
    """Return whether the prompts of an encoding list the legal moves."""
    return isinstance(encoding, PromptEncoding) and encoding.settings.legal_list


# -- answers of a model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetMove:
    """A position and its best move."""

    board: chess.Board
    best: chess.Move

    @classmethod
    def from_uci(cls, fen: str, best_uci: str) -> TargetMove:
        """Return the target of a position (FEN) and its best move (UCI)."""
        return cls(chess.Board(fen), chess.Move.from_uci(best_uci))

    def text(self, encoding: Encoding) -> str:
        """Return the best move as the model would have to write it."""
        return encoding.answer_text(encoding.answer(self.board, self.best))


@dataclass(frozen=True)
class DecodedAnswer:
    """The tokens and the text of an answer. Teacher-forced answers have the nats and tokens of the correct answer."""

    ids: tuple[int, ...]
    text: str
    ended: bool
    nats: float | None = None
    tokens: int | None = None

    def columns(self, target: TargetMove, encoding: Encoding) -> dict[str, Any]:
        """Return the values of `AnswerRow`."""
        right, plain = target.text(encoding), [number for number in self.ids if number not in encoding.stop_ids]
        move = encoding.parse(self.text, target.board) if self.text and self.text.split() == [self.text] else None
        first_move = next(iter(target.board.legal_moves))
        other = sum(one != two for one, two in zip(self.text, right, strict=False)) + abs(len(self.text) - len(right))
        return {
            "valid": move is not None or has_form(encoding, plain),
            "legal": move is not None,
            "first": move == first_move,
            "near": other < 2,
            "ended": self.ended,
            "nats": self.nats,
            "tokens": self.tokens,
        }


def answer_positions(
    model: LanguageModel, encoding: Encoding, targets: Sequence[TargetMove], is_cut: bool
) -> list[dict[str, DecodedAnswer | None]]:
    """Return the answers in both modes to each position; None if prompt and answer do not fit the context or cannot be
    written.

    `is_cut` limits an autoregressive answer to the number of tokens of the correct one.
    """
    answer_rows: list[dict[str, DecodedAnswer | None]] = [{TEACHER_FORCED: None, AUTOREGRESSIVE: None} for _ in targets]
    prompts = {
        number: prompt
        for number, one in enumerate(targets)
        if (prompt := build_prompt(one, encoding, model)) is not None
    }
    if not prompts:
        return answer_rows
    right = {number: encoding.answer(targets[number].board, targets[number].best) for number in prompts}
    scores = answer_teacher_forced(model, list(prompts.values()), list(right.values()))
    autoregressive_ids: dict[int, tuple[int, ...]] = {}
    for number, (tokens, nats) in zip(prompts, scores, strict=True):
        answer = right[number]
        ids = tuple(tokens[:-1]) if len(answer) > 1 else tuple(tokens)
        answer_rows[number][TEACHER_FORCED] = DecodedAnswer(
            ids, encoding.answer_text(ids), tokens[-1] == answer[-1], nats, len(answer)
        )
        shared_count = next(
            (k for k, (written_id, true) in enumerate(zip(tokens, answer, strict=True)) if written_id != true),
            len(answer) - 1,
        )
        autoregressive_ids[number] = (*answer[:shared_count], tokens[shared_count])  # the autoregressive answer so far
    for number, written_id in continue_answers(model, encoding, targets, prompts, autoregressive_ids).items():
        ids = written_id[: len(right[number]) - (len(right[number]) > 1)] if is_cut else written_id
        answer_rows[number][AUTOREGRESSIVE] = DecodedAnswer(
            ids, encoding.answer_text(ids), encoding.is_complete(written_id, targets[number].board)
        )
    return answer_rows


def build_prompt(target: TargetMove, encoding: Encoding, model: LanguageModel) -> tuple[int, ...] | None:
    """Return the prompt of a position; None if prompt and answer do not fit the context, or the position cannot be
    written."""
    try:
        prompt = encoding.prompt(target.board)
    except BadInputError:
        return None
    return prompt if len(prompt) + encoding.max_move_tokens - 1 <= model.block_size else None


def answer_teacher_forced(
    model: LanguageModel, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[tuple[list[int], float]]:
    """Return the most probable token at each place of each answer, and the cross-entropy of the answer in nats.

    Each token is predicted after the preceding tokens of the correct answer. All answers share one pass.
    """
    import torch

    rows = [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = torch.tensor(row)
    row_of = np.repeat(np.arange(len(rows)), [len(answer) for answer in answers])
    place = np.concatenate(
        [len(prompt) - 1 + np.arange(len(answer)) for prompt, answer in zip(prompts, answers, strict=True)]
    )
    with torch.inference_mode():
        hidden = model.network.hidden(tokens.to(model.device))
        logprobs = torch.log_softmax(model.network.unembed(hidden[row_of, place]).float(), -1).cpu()
    true = torch.tensor([number for answer in answers for number in answer])
    nats = -logprobs.gather(1, true[:, None])[:, 0].double().numpy()
    most = logprobs.argmax(-1).numpy()
    return [(most[row_of == number].tolist(), float(nats[row_of == number].sum())) for number in range(len(rows))]


def count_sample_distances(
    spec: DecodingSpec, model: LanguageModel, encoding: Encoding, target: TargetMove, greedy: DecodedAnswer, item: int
) -> dict[int, int]:
    """Return edit distance → number of samples of one position with this distance from its answer `greedy`.

    Distances are in tokens, without the token that ends an answer. `item` is the position's row in the dataset, a part
    of the key of every draw. The spec gives the number of samples, the temperature and top-p.
    """
    prompt = build_prompt(target, encoding, model)
    assert prompt is not None
    every = range(spec.samples)

    def pick(number: int, place: int, logprobs: np.ndarray) -> int:
        noise = uniform(Stream.DECODING, spec.seed, spec.replicate, item, number, place)
        return sample_nucleus(logprobs, spec.temperature, spec.top_p, noise)

    texts = continue_answers(
        model, encoding, [target] * spec.samples, dict.fromkeys(every, prompt), dict.fromkeys(every, ()), pick
    )
    first, *sample_ids = ([n for n in ids if n not in encoding.stop_ids] for ids in (greedy.ids, *texts.values()))
    return dict(sorted(Counter(compute_edit_distance(first, other) for other in sample_ids).items()))


def sample_nucleus(logprobs: np.ndarray, temperature: float, top_p: float, noise: float) -> int:
    """Return a token drawn from the most probable ones that together have probability `top_p` (Holtzman et al. 2020).

    `noise` in [0, 1) selects the token; `temperature` divides the log-probabilities first.

    >>> [sample_nucleus(np.log([0.2, 0.5, 0.3]), 1.0, 0.7, noise) for noise in (0.0, 0.6, 0.7, 0.99)]
    [1, 1, 2, 2]
    """
    scores = logprobs.astype(np.float64) / temperature
    weights = np.exp(scores - scores.max())
    order = np.argsort(-weights, kind="stable")
    share = weights[order].cumsum() / weights.sum()
    nucleus_shares = share[: int((share < top_p).sum()) + 1]
    return int(order[min(int((nucleus_shares <= noise * nucleus_shares[-1]).sum()), len(nucleus_shares) - 1)])


def compute_edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the fewest insertions, deletions and substitutions that turn one sequence into the other (Levenshtein).

    >>> compute_edit_distance([1, 2, 3], [1, 3]), compute_edit_distance([1, 2], [2, 1])
    (1, 2)
    """
    row = list(range(len(other) + 1))
    for place, symbol in enumerate(one, 1):
        before, row[0] = row[0], place
        for k, character in enumerate(other, 1):
            before, row[k] = row[k], min(row[k] + 1, row[k - 1] + 1, before + (symbol != character))
    return row[-1]


def pick_most_probable(number: int, place: int, logprobs: np.ndarray) -> int:
    """Return the most probable token."""
    return int(logprobs.argmax())


def continue_answers(
    model: LanguageModel,
    encoding: Encoding,
    targets: Sequence[TargetMove],
    prompts: Mapping[int, Sequence[int]],
    prefixes: Mapping[int, tuple[int, ...]],
    pick: Callable[[int, int, np.ndarray], int] = pick_most_probable,
) -> dict[int, tuple[int, ...]]:
    """Return the answers of `prefixes`, continued until the model ends them or they are longer than any move.

    `pick` returns a token, given an answer's number, the token's place and log-probabilities [vocab].
    """
    from chessreg.models.decoding.session import open_decoding_session

    texts = dict(prefixes)

    def open_ones() -> list[int]:
        return [
            number
            for number, ids in texts.items()
            if len(ids) < encoding.max_move_tokens and not encoding.is_complete(ids, targets[number].board)
        ]

    open_places = open_ones()
    if not open_places:
        return texts
    session, row_of = (
        open_decoding_session(model, len(open_places)),
        {number: row for row, number in enumerate(open_places)},
    )
    logprobs = session.sync([[*prompts[number], *texts[number]] for number in open_places])
    while open_places:
        new: list[list[int]] = [[] for _ in row_of]
        for number in open_places:
            token = pick(number, len(texts[number]), logprobs[row_of[number]].cpu().numpy())
            texts[number] = (*texts[number], token)
            new[row_of[number]] = [token]
        still_open = set(open_ones())
        open_places = [number for number in open_places if number in still_open]
        if open_places:
            logprobs = session.feed(
                [ids if number in still_open else [] for number, ids in zip(row_of, new, strict=True)]
            )
    return texts


def build_decoding_frame(
    fen: str, best_move: chess.Move, rows: Mapping[str, tables.Prediction], encoding: Encoding
) -> BoardFrame:
    """Return the board of one position with the answers in both modes."""
    board, row = chess.Board(fen), rows[AUTOREGRESSIVE]
    title, is_flipped = f"position {row.item}", board.turn == chess.BLACK
    arrows: list[tuple[int, int, float, str, Role]] = [
        (best_move.from_square, best_move.to_square, 0.4, f"{board.san(best_move)} (best)", "best")
    ]
    if row.value is None:
        caption = ["prompt and answer do not fit the model"]
        return BoardFrame.from_board(board, title, arrows=arrows, caption=caption, flipped=is_flipped)
    caption = []
    for mode in (AUTOREGRESSIVE, TEACHER_FORCED):
        extra, text = rows[mode].detail or {}, rows[mode].text or ""
        state = "legal" if extra["legal"] else "valid, illegal" if extra["valid"] else "no move"
        caption.append(f"{mode}: {text!r}, {'best' if rows[mode].value else state}")
    move = encoding.parse(row.text or "", board) if (row.detail or {})["legal"] else None
    if move is not None and move != best_move:
        arrows.insert(0, (move.from_square, move.to_square, 1.0, f"{board.san(move)} (model)", "played"))
    return BoardFrame.from_board(board, title, arrows=arrows, caption=caption, flipped=is_flipped)
