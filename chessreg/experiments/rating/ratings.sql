-- title: ratings
-- topic: ratings
-- question: What is each player's rating in its pool, with its interval?
-- aliases: rating table, elo table, elo ratings, rating list, player ratings, rating of the model, elo estimates,
--       estimated elo
-- paper: Junkin 2025, Appendix I; Karvonen 2024, section 4.2
-- kinds: rating
-- made by: chessreg run rating
-- default: estimator, player; rating, score; games, opponents
-- columns:
--   run: the rating run; ratings of different runs are of different pools
--   estimator: how it rates
--   player: a model with its intervention, an engine with its limit, or a name
--   rating [Elo]: estimated, or known beforehand (an anchor)
--   rating_low [Elo]: its interval's lower end; the only thing known of a player that won every game
--   rating_high [Elo]: the upper end; the only thing known of one that lost every game
--   anchor: where a known rating comes from; empty: it is estimated
--   games [games]: of the player, all
--   w [games]: won
--   d [games]: drawn
--   l [games]: lost
--   score: points per game of all, a draw a half
--   unscored [games]: that count nothing under this scoring
--   opponents [players]: different ones
--   anchored_games [games]: against opponents of known rating: bradley-terry and davidson rest on all games, the
--       other estimators on these
--   systematic [Elo]: by which all ratings may be off together, as the anchors may
--   scoring: what draws and stopped games count
--   draw_weight: points of a draw, where the run says it
--   policy: how the model's move is chosen
--   opening: how its games begin
--   checkpoint_id [hidden]: its id
--   intervention_id [hidden]: its id

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
SELECT cell, run, estimator, player, rating, rating_low, rating_high, anchor, games, w, d, l, score, unscored, opponents,
       anchored_games, systematic, scoring, draw_weight, policy, opening, checkpoint_id, intervention_id
FROM base
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
