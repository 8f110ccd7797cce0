-- title: elo by intervention
-- aliases: elo, skill interventions, karvonen table 3, karvonen figure 2
-- paper: Karvonen 2024, Table 3 and Figure 2
-- made by: chessreg run play
-- columns:
--   checkpoint: the model that played
--   intervention: source, layers (0-based), scale and positions of the edit; none is the model as it is
--   color: the model's
--   engine: the opponent's program
--   engine_version: and its version
--   opponent: the opponent as it was asked for
--   level [hidden]: the engine's skill level
--   limit [hidden]: what bounds one move of the engine
--   opening: standard, random:PLIES or book:DIGEST
--   policy: how the model's move is chosen
--   move_limit [moves]: after so many moves of the model the game is stopped and adjudicated
--   scoring: paper (draws a half; beyond the move limit more than 100 centipawns decide) or author-2024
--   n [games]: games played
--   planned [games]: games that the runs were to play
--   unique_games [games]: different move lists among them
--   w [games]: won
--   d [games]: drawn
--   l [games]: lost
--   unscored [games]: no score under this scoring policy
--   adjudicated [games]: stopped and decided by the engine's evaluation
--   forfeits [games]: lost by illegal tries
--   score: points per scored game, with its interval; openings are resampled
--   elo [Elo]: against that engine; at a score of 0 or 1 only a bound is known
--   delta_score: score minus that of the model without intervention, on the same openings
--   delta_elo [Elo]: the same in Elo
--   first_try_legal [%]: turns of the model whose first try was a legal move
--   runs: the runs that played
--   machines: where they ran
--   checkpoint_id [hidden]: its id
--   intervention_id [hidden]: its id
-- statistics:
--   score = score(points, scored)
--   elo = elo(points, scored)
--   delta_score = score_difference(points, scored, base_points, base_scored)
--   delta_elo = elo_difference(points, scored, base_points, base_scored)

-- statement: cells
-- One row per arm. Arms of one protocol differ in their intervention alone; arms of one cell in nothing shown.
SELECT *,
       dense_rank() OVER (ORDER BY checkpoint, checkpoint_id, color, engine, engine_version, engine_id, level, opponent,
                                   "limit", opening, policy, move_limit,
                                   intervention_id IS NOT NULL, intervention, intervention_id) AS cell,
       dense_rank() OVER (ORDER BY checkpoint, checkpoint_id, color, engine, engine_version, engine_id, level, opponent,
                                   "limit", opening, policy, move_limit) AS protocol
FROM arms
JOIN (SELECT run_id, run, machines FROM scoped) USING (run_id)

-- statement: base
SELECT c.cell, c.protocol, c.opening_seed,
       CASE WHEN c.opening = 'standard' THEN g.unit ELSE g.opening_number END AS opening_number,
       g.run_id, g.unit, g.match, g.attempt_id, c.run, c.checkpoint_id, c.checkpoint, c.intervention, c.color,
       game_score($scoring, g.result, g.termination, g.adjudication_cp, c.color) AS score,
       g.plies, g.result, g.termination, g.adjudication_cp, g.turns, g.first_try_legal, g.seconds, g.moves
FROM game AS g JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match

-- statement: table
WITH played AS (
    SELECT cell, count(*) AS n,
           count(*) FILTER (score = 1) AS w, count(*) FILTER (score = 0.5) AS d, count(*) FILTER (score = 0) AS l,
           count(*) FILTER (score IS NULL) AS unscored,
           count(*) FILTER (result = '*' AND adjudication_cp IS NOT NULL) AS adjudicated,
           count(*) FILTER (termination = 'forfeit_illegal') AS forfeits,
           100.0 * sum(first_try_legal)::DOUBLE / nullif(sum(turns), 0)::DOUBLE AS first_try_legal
    FROM base
    GROUP BY cell
),
different AS (
    SELECT cell, count(*) AS unique_games FROM (SELECT DISTINCT cell, hash(moves) FROM base) GROUP BY cell
),
arm AS (
    SELECT cell, checkpoint, checkpoint_id, intervention, intervention_id, color, engine, engine_version, level,
           opponent, "limit", opening, policy, move_limit, sum(planned)::BIGINT AS planned,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs,
           string_agg(DISTINCT machines, ', ' ORDER BY machines) AS machines
    FROM cells
    GROUP BY ALL
)
SELECT cell, checkpoint, intervention, color, engine, engine_version, opponent, level, "limit", opening, policy,
       move_limit, $scoring AS scoring, n, planned, unique_games, w, d, l, unscored, adjudicated, forfeits,
       first_try_legal, runs, machines, checkpoint_id, intervention_id
FROM arm JOIN played USING (cell) JOIN different USING (cell)
ORDER BY cell

-- statement: clusters
-- A cluster is one opening; beside its points stand those of the plain model from the same opening. Openings on which
-- the same happened in every cell of a protocol are counted together; a game is written 4 * cell + twice its score.
WITH opened AS (
    SELECT protocol, list_sort(list(4 * cell + coalesce(2 * score, 3)::BIGINT)) AS games
    FROM base
    GROUP BY protocol, opening_seed, opening_number
),
alike AS (
    SELECT row_number() OVER () AS number, games, openings
    FROM (SELECT protocol, games, count(*) AS openings FROM opened GROUP BY ALL)
),
scored AS (
    SELECT number, openings, game // 4 AS cell, sum(game % 4) / 2 AS points, count(*) AS scored
    FROM (SELECT number, openings, unnest(games) AS game FROM alike)
    WHERE game % 4 < 3
    GROUP BY ALL
),
twin AS (
    SELECT DISTINCT e.cell, p.cell AS plain_cell
    FROM cells AS e JOIN cells AS p ON p.protocol = e.protocol AND p.intervention_id IS NULL
    WHERE e.intervention_id IS NOT NULL
)
SELECT o.cell, o.points, o.scored, p.points AS base_points, p.scored AS base_scored,
       sum(o.openings)::BIGINT AS clusters
FROM scored AS o
LEFT JOIN twin AS t ON t.cell = o.cell
LEFT JOIN scored AS p ON p.number = o.number AND p.cell = t.plain_cell
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, result, score, termination, plies, turns, first_try_legal, adjudication_cp, opening_number,
       intervention, color, run_id
FROM base
ORDER BY run_id, unit
