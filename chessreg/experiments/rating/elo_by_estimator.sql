-- title: elo by estimator
-- topic: ratings
-- question: Which Elo do different estimators give to the same players?
-- aliases: estimators, ladder elo, junkin elo, junkin ratings, rating estimators
-- paper: Junkin 2025, section 4 and Appendix I, Table 3
-- kinds: rating
-- made by: chessreg run rating
-- default: player, estimator, against; rating, score; games
-- columns:
--   run: the rating run; --estimator all rates its games by every estimator
--   player: a model with its intervention and help, an engine with its limit, or a name
--   checkpoint: the model
--   assist: when Stockfish played the model's move; ratings with help are not the model's own
--   origin: origin of its games
--   estimator: method of rating; `performance` uses the games against one opponent alone, `known` is a rating given in
--       advance, `anchors' own error` is the headline with the uncertainty of the table of known ratings
--   draw_weight: points of a draw
--   against: the opponent of a performance
--   rating [Elo]: as estimated
--   rating_low [Elo]: its interval's lower end; the only known bound of a player that won every game
--   rating_high [Elo]: the upper end; the only known bound of a player that lost every game
--   counted [games]: games that determine the rating: those against opponents of known rating; for bradley-terry and
--       davidson all; empty: a known rating
--   games [games]: all games of the player; for a performance those against that opponent
--   w [games]: won games among these
--   d [games]: drawn games
--   l [games]: lost games
--   score: points per game of these, a draw a half
--   scoring: points of draws and stopped games
--   policy: how the model's move is chosen
--   opening: source of its openings
--   colors: colors of the rated players whose games count
--   known: source of the known ratings
--   adjudicated [games]: games of the player stopped and decided by the engine's evaluation
--   warning [hidden]: that games without a result are scored by Stockfish's evaluation, and that by several engines
--   level [hidden]: level of the opponent of a performance, or of a known player
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
-- plot: elo by estimator
--   form: dots
--   x: estimator
--   y: rating
--   series: player, draw_weight
--   panels: run
--   where: against IS NULL AND estimator <> 'known' AND rating IS NOT NULL
-- plot: performance by level
--   form: lines
--   x: level
--   y: rating
--   series: player, draw_weight
--   panels: run
--   where: estimator = 'performance' AND level >= 0

-- statement: cells
SELECT t.run_id, t.unit, t.attempt_id, r.run, r.created_at, t.player, t.rating, t.low, t.high,
       CASE WHEN t.anchor IS NULL THEN CASE WHEN t.estimator IN ('bradley-terry', 'davidson') THEN t.games
                                            ELSE t.anchored_games END END AS counted, t.games, t.wins, t.draws, t.losses,
       t.score, t.scoring, t.policy, t.opening, t.assist, t.origin, t.anchor, t.systematic, t.against,
       CASE WHEN t.anchor IS NULL THEN t.draw_weight END AS draw_weight,
       q.color AS colors, q.anchors, CASE WHEN t.anchor IS NULL THEN t.estimator ELSE 'known' END AS estimator,
       TRY_CAST(regexp_extract(coalesce(t.against, t.player), '^stockfish:(-?\d+)', 1) AS BIGINT) AS level,
       TRY_CAST(t.checkpoint_id AS UUID) AS checkpoint_id, TRY_CAST(t.intervention_id AS UUID) AS intervention_id
FROM rating_rating AS t JOIN scoped AS r ON r.run_id = t.run_id JOIN rating_run AS q ON q.run_id = t.run_id
WHERE coalesce(t.rating, t.low, t.high) IS NOT NULL  -- a player without common opponents has no rating

-- statement: base
-- The row `anchors' own error` follows the headline of every player that has one.
SELECT row_number() OVER (ORDER BY created_at, run_id, estimator = 'known',
                                   CASE WHEN estimator = 'known' THEN level END, assist <> 'none', player,
                                   against IS NOT NULL, unit, level, place) AS cell, *
FROM (
    SELECT *, 0 AS place FROM cells
    UNION ALL
    SELECT * REPLACE ('anchors'' own error' AS estimator, rating - systematic AS low, rating + systematic AS high), 1 AS place
    FROM cells
    WHERE estimator <> 'known' AND against IS NULL AND systematic IS NOT NULL AND rating IS NOT NULL
        AND unit = 0
)

-- statement: sources
-- The rating, and the matches of its player.
SELECT cell, run_id FROM base
UNION
SELECT b.cell, s.side_run_id FROM base AS b
JOIN rated_sides AS s ON s.run_id = b.run_id AND s.unit = b.unit AND s.player = b.player

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
SELECT b.cell, b.run, b.player, c.checkpoint, b.assist, b.origin, b.estimator, b.draw_weight, b.against, b.rating,
       b.low AS rating_low, b.high AS rating_high, b.counted, b.games, b.wins AS w, b.draws AS d, b.losses AS l, b.score, b.scoring,
       b.policy, b.opening, b.colors, b.anchors AS known, coalesce(t.adjudicated, 0) AS adjudicated,
       nullif(concat_ws('; ', unfinished_text(t.adjudicated, b.games), evaluators_text(t.evaluators, 'these games')), '') AS warning, b.level,
       b.checkpoint_id, b.intervention_id
FROM base AS b LEFT JOIN checkpoints AS c ON c.checkpoint_id = b.checkpoint_id LEFT JOIN stopped AS t ON t.cell = b.cell
ORDER BY b.cell

-- statement: rows
SELECT right(replace(g.run_id::VARCHAR, '-', ''), 6) || ':' || g.unit AS board, runs.run, g.unit, g.result, g.termination,
       g.plies, m.player, m.opponent, m.color, g.run_id
FROM (SELECT DISTINCT s.side_run_id AS run_id, s.match
      FROM base AS b JOIN rated_sides AS s ON s.run_id = b.run_id AND s.unit = b.unit AND s.player = b.player) AS played
JOIN game AS g ON g.run_id = played.run_id AND g.match = played.match
JOIN "match" AS m ON m.run_id = g.run_id AND m.number = g.match
JOIN runs ON runs.run_id = g.run_id
ORDER BY run_place(g.run_id), g.unit
