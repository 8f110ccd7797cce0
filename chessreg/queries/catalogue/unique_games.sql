-- title: unique games
-- topic: play
-- question: How many of the games are different, and are any of them training games?
-- aliases: games against the training set, karvonen section 2.2, duplicate games, memorised games, memorized games,
--       games of a match different from each other, which openings were used, openings, repeated games, does it repeat games
-- paper: Karvonen 2024, section 2.2
-- kinds: play, engine-match, imported-games
-- made by: chessreg run play
-- default: checkpoint, intervention, opponent, opening; unique_by_10, unique_at_all; unique_games, n
-- columns:
--   checkpoint: the model that played
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   color: the model's color
--   opponent: the opponent as requested
--   opening: standard, random:PLIES or book:DIGEST
--   policy: how the model's move is chosen
--   rules: further settings that differ from the defaults of `run play`: temperatures, a full context, adjudication
--   n [games]: games played
--   planned [games]: games planned in these runs
--   unique_games [games]: different move lists among them
--   compared [games]: games that could be compared with the training games of the model
--   unique_by_10 [%]: share of the compared games whose first 20 plies begin no training game
--   unique_at_all [%]: share of the compared games that are not training games
--   training_games [games]: training games with the moves of one of these games
--   first_try_legal [%]: turns of the model whose first try was a legal move; games are resampled; empty for the policies
--       legal and trie, which choose among the legal moves
--   runs: the runs that played
--   checkpoint_id [hidden]: its id
--   intervention_id [hidden]: its id
-- statistics:
--   unique_by_10 = percent(new_by_10, compared)
--   unique_at_all = percent(new_at_all, compared)
--   first_try_legal = percent(legal, turns)

-- statement: cells
SELECT *,
       dense_rank() OVER (ORDER BY own_name, checkpoint_place, color, engine, engine_version, engine_id,
                                   level, opponent,
                                   "limit", opening, policy, move_limit, rules,
                                   intervention_id IS NOT NULL, intervention, vector_seed, vector_name, intervention_id) AS cell
FROM arms
JOIN (SELECT run_id, run FROM scoped) USING (run_id)
WHERE checkpoint_id IS NOT NULL

-- statement: base
-- A game shorter than 20 plies is compared as it is.
SELECT c.cell, c.run, g.run_id, g.unit, g.match, g.attempt_id, g.plies, g.result, g.termination, g.move_hash,
       CASE WHEN first_tries(c.policy, g.first_try_legal) IS NOT NULL THEN g.turns END AS turns,
       first_tries(c.policy, g.first_try_legal) AS legal,
       p.training_openings,
       p.training_games
FROM game AS g JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match
LEFT JOIN play_game AS p ON p.run_id = g.run_id AND p.unit = g.unit

-- statement: table
WITH played AS (
    SELECT cell, count(*) AS n, count(training_openings) AS compared, count(DISTINCT move_hash) AS unique_games,
           whole(sum(training_games)) AS training_games
    FROM base
    GROUP BY cell
),
arm AS (
    SELECT cell, checkpoint, checkpoint_id, intervention, intervention_id, color, opponent, opening, policy, rules,
           whole(sum(planned)) AS planned, string_agg(DISTINCT run, ', ' ORDER BY run) AS runs
    FROM cells
    GROUP BY ALL
)
SELECT cell, checkpoint, intervention, color, opponent, opening, policy, rules, n, planned, unique_games, compared,
       training_games, runs, checkpoint_id, intervention_id
FROM arm JOIN played USING (cell)
ORDER BY cell

-- statement: clusters
-- A cluster is one game.
SELECT cell, (training_openings = 0)::BIGINT AS new_by_10, (training_games = 0)::BIGINT AS new_at_all,
       CASE WHEN training_openings IS NOT NULL THEN 1 END AS compared, legal, turns, count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, plies, result, termination, training_openings, training_games, run_id
FROM base
ORDER BY run_place(run_id), unit
