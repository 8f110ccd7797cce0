-- title: ratings
-- topic: ratings
-- question: How high is each player's rating in its pool?
-- aliases: rating table, elo table, elo ratings, rating list, player ratings, rating of the model, elo estimates,
--       estimated elo
-- paper: Junkin 2025, Appendix I; Karvonen 2024, section 4.2
-- kinds: rating
-- made by: chessreg run rating
-- default: estimator, player; rating, score; games, opponents
-- columns:
--   run: the rating run; different runs have different pools
--   estimator: method of rating
--   player: a model with its intervention, an engine with its limit, or a name
--   rating [Elo]: estimated, or known beforehand (an anchor)
--   rating_low [Elo]: its interval's lower end; the only known bound of a player that won every game
--   rating_high [Elo]: the upper end; the only known bound of a player that lost every game
--   anchor: source of a known rating; empty: an estimated rating
--   games [games]: all games of the player
--   w [games]: won games
--   d [games]: drawn games
--   l [games]: lost games
--   score: points per game, a draw counts half
--   unscored [games]: games that this scoring ignores
--   adjudicated [games]: stopped and decided by the engine's evaluation
--   opponents [players]: number of different opponents
--   anchored_games [games]: games against opponents of known rating; bradley-terry and davidson use all games, the
--       other estimators these
--   systematic [Elo]: common error of all ratings, from the error of the anchors
--   scoring: points of draws and stopped games
--   draw_weight: points of a draw, if the run sets it
--   policy: how the model's move is chosen
--   opening: source of its openings
--   warning [hidden]: that games without a result are scored by Stockfish's evaluation, and that by several engines
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention

-- statement: cells
SELECT t.run_id, t.unit, t.attempt_id, r.run, t.estimator, t.player, t.rating, t.low AS rating_low, t.high AS rating_high,
       t.games, t.anchor,
       t.wins AS w, t.draws AS d,
       t.losses AS l, t.score,
       t.unscored,
       t.opponents,
       t.anchored_games,
       t.systematic,
       t.scoring, t.draw_weight, t.policy,
       t.opening,
       TRY_CAST(t.checkpoint_id AS UUID) AS checkpoint_id,
       TRY_CAST(t.intervention_id AS UUID) AS intervention_id,
       row_number() OVER (ORDER BY r.created_at, t.run_id, coalesce(t.rating, t.low, t.high) DESC NULLS LAST, t.player) AS cell
FROM rating_rating AS t JOIN scoped AS r ON r.run_id = t.run_id
WHERE t.estimator <> 'performance'

-- statement: base
SELECT * FROM cells

-- statement: table
WITH stopped AS (
    SELECT p.cell, count(*) AS adjudicated,
           all_evaluators(list(a.evaluators)) AS evaluators
    FROM (SELECT DISTINCT b.cell, s.side_run_id AS run_id, s.match
          FROM base AS b JOIN rated_sides AS s ON s.run_id = b.run_id AND s.unit = b.unit AND s.player = b.player) AS p
    JOIN game AS g ON g.run_id = p.run_id AND g.match = p.match
    JOIN arms AS a ON a.run_id = p.run_id AND a.match = p.match
    WHERE g.result = '*' AND g.adjudication_cp IS NOT NULL
    GROUP BY p.cell
)
SELECT cell, run, estimator, player, rating, rating_low, rating_high, anchor, games, w, d, l, score, unscored,
       coalesce(adjudicated, 0) AS adjudicated, opponents, anchored_games, systematic, scoring, draw_weight, policy,
       opening,
       nullif(concat_ws('; ', unfinished_text(adjudicated, games), evaluators_text(evaluators, 'these games')), '') AS warning,
       checkpoint_id, intervention_id
FROM base LEFT JOIN stopped USING (cell)
ORDER BY cell

-- statement: rows
SELECT right(replace(g.run_id::VARCHAR, '-', ''), 6) || ':' || g.unit AS board, runs.run, g.unit, g.result, g.termination,
       g.plies, m.player, m.opponent, m.color, g.run_id
FROM (SELECT DISTINCT s.side_run_id AS run_id, s.match
      FROM base AS b JOIN rated_sides AS s ON s.run_id = b.run_id AND s.unit = b.unit AND s.player = b.player) AS played
JOIN game AS g ON g.run_id = played.run_id AND g.match = played.match
JOIN "match" AS m ON m.run_id = g.run_id AND m.number = g.match
JOIN runs ON runs.run_id = g.run_id
ORDER BY run_place(g.run_id), g.unit
