"""Phrases that researchers type find the table that answers them."""

from __future__ import annotations

import pytest

from chessreg.errors import NotFoundError
from chessreg.queries.catalogue import find_entry, find_plot, list_entries

# The second half was written by a researcher who did not know the catalogue.
PHRASES = """
win rate | wins by level
steering | elo by intervention
l0 | sae reconstruction
confusion matrix | probe f1 by class
how good is the probe at each layer | best probe layers, probe accuracy by layer
legal move rate | legal moves by ply, legal moves by phase
sae loss recovered | sae reconstruction
elo of the model | ratings, elo by estimator, elo by intervention
probe vs random init | best probe layers
does editing the board work | board intervention legality, best board edit
centipawns lost | move quality
mass at layer | legal move mass by layer
bidirectional attention | mask ablation
which layer is best for piece probes | best probe layers, probe accuracy by layer
games lost by illegal moves | games by termination
cosine between probe directions | probe composition
stockfish level 5 | wins by level
effect of scale | edit strength
markov test | markov by layer
transpositions | markov by layer
learning curve | training curves
hyperparameters | training settings
draws | draws by evaluation
duplicate games | unique games
puzzles | puzzles by rating
prompt with legal moves | prompt ablation
perplexity per ply | perplexity
expansion factor | legal move mass by expansion
vector norm | vectors by layer
precision and recall | probe metrics by class
board probe accuracy | probe accuracy by layer
probe acc by layer | probe accuracy by layer
elo probe | rating error by layer
skill probes | rating error by layer
random init baseline probe | best probe layers
per-piece probe accuracy | probe f1 by class
probe accuracy vs ply | square accuracy by ply
skill vector scale sweep | best skill edit, elo by intervention
does steering increase elo | elo by intervention
negative steering | elo by intervention
board edits | board intervention legality
intervention success rate | board intervention legality
legal move prob mass | legal move mass by edit
illegal moves | games by termination
legality by temperature | decoding modes
piece deletion | board intervention legality
SAEs | sae reconstruction
sae l0 vs loss recovered | sae reconstruction
dead features | sae reconstruction
win rate vs stockfish | wins by level
sf level 0 results | wins by level
elo estimates | ratings
model sizes | training settings
causal vs bidirectional | mask ablation
fen policies | move accuracy by model
fen or pgn input | move accuracy by model
puzzle accuracy by rating | puzzles by rating
mate in 2 | puzzles by rating
ppl | perplexity
human move match | move accuracy by model
"""
EXPECTED = {line.partition(" | ")[0]: line.partition(" | ")[2].split(", ") for line in PHRASES.strip().splitlines()}


def test_at_least_54_of_60_phrases_find_their_table():
    def found(phrase):
        try:
            return find_entry(phrase).title
        except NotFoundError as error:
            return error.hint

    missed = {phrase: found(phrase) for phrase, titles in EXPECTED.items() if found(phrase) not in titles}
    assert len(EXPECTED) == 60
    assert len(missed) <= 6, missed


FURTHER_PHRASES = """
which openings were used | unique games
how often is it illegal | games by termination
how many games did it lose | wins by level
score against random | wins by level, elo by intervention
does the model repeat the same games | unique games
average game length | games by termination
error bars of probe accuracy | probe accuracy by layer, best probe layers
f1 of the queen | probe f1 by class
does the vector make it stronger | elo by intervention
random direction control | board intervention legality, elo by intervention, legal move mass by edit
how much did the loss drop | training curves
learning rate of each model | training settings
how many parameters do the models have | training settings
how many draws by repetition | games by termination, draws by evaluation
number of active latents | sae reconstruction
how does accuracy change during the game | square accuracy by ply
accuracy on late game positions | square accuracy by ply
side effects of the edit | edit specificity
best alpha | edit strength
are the moves legal after the edit | board intervention legality
does the model know elo | rating error by layer
hyperparameters of the probe | probe settings
"""


def test_at_least_20_of_22_further_phrases_find_their_table():
    expected = dict(line.split(" | ") for line in FURTHER_PHRASES.strip().splitlines())
    assert len(expected) == 22
    missed = {phrase: find_entry(phrase).title for phrase in expected
              if find_entry(phrase).title not in expected[phrase].split(", ")}  # fmt: skip
    assert len(missed) <= 2, missed


QUESTIONS = """
which squares does the probe get wrong | accuracy by square
which squares are worst | accuracy by square
worst squares | accuracy by square
how many games were played | wins by level
illegal moves | games by termination
how good is the model | wins by level
did the vector change how it plays | elo by intervention
did the steering vector change how the model plays | elo by intervention
game length by intervention | games by termination
how long are the games | games by termination
which pieces are hardest to read | probe f1 by class
which piece is read worst | probe f1 by class
are the games of the match different from each other | unique games
"""


@pytest.mark.parametrize("line", QUESTIONS.strip().splitlines())
def test_a_question_in_words_finds_its_table(line):
    phrase, title = line.split(" | ")
    assert find_entry(phrase).title == title


def test_the_name_of_a_plot_finds_the_query_it_draws():
    queries = {name.lower() for entry in list_entries() for name in (entry.title, *entry.aliases)}
    plots = {n: e.title for e in list_entries() for p in e.plots for n in (p.title, *p.aliases) if n not in queries}
    assert len(plots) > 20
    assert {name: find_entry(name).title for name in plots} == plots


def test_a_query_with_runs_is_preferred_on_a_near_tie_only():
    edits = {"edit-next-token"}
    assert find_entry("layer").title == "best probe layers"
    assert find_entry("layer", complete_kinds=edits).title == "legal move mass by layer"
    assert find_entry("probe by class", complete_kinds=edits).title == "probe f1 by class"
    assert find_entry("probe accuracy by layer", complete_kinds=edits).title == "probe accuracy by layer"


def test_a_phrase_without_a_match_is_answered_with_three_queries_that_have_runs():
    def hint(kinds):
        with pytest.raises(NotFoundError) as caught:
            find_entry("are the games too short", complete_kinds=kinds)
        return caught.value.hint

    assert hint({"engine-match"}) == 'did you mean "games by termination" or "unique games"?'
    assert hint({"play", "legality", "probe"}).count('"') == 6
    assert hint({"sae"}) == "chessreg query --list"
    assert hint(None).count('"') == 6


@pytest.mark.parametrize("name", ["elo by intervenion", "probe acuracy by layer", "perplexty", "zzz", "", "?"])
def test_a_spelling_error_is_asked_about_and_nonsense_is_refused(name):
    with pytest.raises(NotFoundError, match=r"query .* does not exist"):
        find_entry(name)


@pytest.mark.parametrize(
    ("phrase", "query"),
    [
        ("win rates against stockfish", "wins by level"),
        ("square accuracy over the game", "square accuracy by ply"),
        ("loss curve", "training curves"),
        ("puzzle accuracy by rating", "puzzles by rating"),
        ("causal vs bidirectional", "mask ablation"),
    ],
)
def test_a_phrase_finds_a_plot_too(phrase, query):
    entry, plot = find_plot(phrase)
    assert entry.title == query
    assert plot in entry.plots
