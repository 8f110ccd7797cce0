-- title: games by termination
-- topic: play
-- question: How do games end: checkmate, draws, illegal moves, move limit?
-- aliases: terminations, how games end, illegal forfeits, forfeits, game endings, games lost by illegal moves, illegal
--       moves, game length, game length by intervention, how long are the games, how often is it illegal, average
--       length of games, draws by repetition, resigned games
-- paper: Karvonen 2024, section 2.2 and Appendix E
-- kinds: play, engine-match, imported-games
-- made by: chessreg run play
-- default: checkpoint, intervention, opponent, policy, termination; share, plies; n
-- columns:
--   checkpoint: the model that played
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   color: the model's color
--   opponent: the opponent as requested
--   engine_version: the version of the opponent's program
--   opening: standard, random:PLIES or book:DIGEST
--   policy: how the model's move is chosen
--   move_limit [moves]: moves of the model after which a game is stopped and adjudicated
--   rules: further settings that differ from the defaults of `run play`: temperatures, a full context, adjudication
--   evaluator: the engine that evaluated positions, for adjudication, draws or assisted moves; several: the row mixes
--       them; empty: none, or not recorded
--   termination: why the games stopped
--   n [games]: games with this termination
--   share [%]: of the games of this arm, with its interval; openings are resampled, or games from the standard position
--   games [games]: games of this arm
--   planned [games]: games planned in these runs
--   w [games]: games won among them, under the scoring policy; unfinished games by the engine's evaluation
--   d [games]: drawn
--   l [games]: lost
--   plies [plies]: mean length
--   runs: the runs that played
--   warning [hidden]: that several engines evaluated positions
--   checkpoint_id [hidden]: its id
--   intervention_id [hidden]: its id
-- statistics:
--   share = percent(ended, games)

-- statement: cells
SELECT *,
       dense_rank() OVER (ORDER BY own_name, checkpoint_place, color, engine, engine_version, engine_id,
                                   level, opponent,
                                   "limit", opening, policy, move_limit, rules,
                                   intervention_id IS NOT NULL, intervention, vector_seed, vector_name, intervention_id) AS arm
FROM arms
JOIN (SELECT run_id, run FROM scoped) USING (run_id)

-- statement: base
SELECT c.arm, 1000 * c.arm + t.place AS cell, c.opening_stream, g.opening_number,
       g.run_id, g.unit, g.match, g.attempt_id, c.run, c.checkpoint_id, c.checkpoint, c.intervention, c.color,
       game_score($scoring, g.result, g.termination, g.adjudication_cp, c.color) AS score,
       g.plies, g.result, g.termination, g.adjudication_cp, g.turns,
       first_tries(c.policy, g.first_try_legal) AS first_try_legal, g.seconds
FROM game AS g
JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match
JOIN (SELECT termination, row_number() OVER (ORDER BY termination) AS place
      FROM (SELECT DISTINCT termination FROM game)) AS t ON t.termination = g.termination

-- statement: table
WITH ended AS (
    SELECT arm, cell, any_value(termination) AS termination, count(*) AS n,
           count(*) FILTER (score = 1) AS w, count(*) FILTER (score = 0.5) AS d, count(*) FILTER (score = 0) AS l,
           count(*) FILTER (result = '*' AND adjudication_cp IS NOT NULL) AS adjudicated,
           sum(plies)::DOUBLE / count(*) AS plies
    FROM base
    GROUP BY arm, cell
),
described AS (
    SELECT arm, checkpoint, checkpoint_id, intervention, intervention_id, color, opponent, engine_version, opening,
           policy, move_limit, rules, assist, whole(sum(planned)) AS planned,
           all_evaluators(list(evaluators)) AS evaluators, string_agg(DISTINCT run, ', ' ORDER BY run) AS runs
    FROM cells
    GROUP BY ALL
)
SELECT cell, checkpoint, intervention, color, opponent, engine_version, opening, policy, move_limit, rules,
       nullif(array_to_string(evaluators, ', '), '') AS evaluator, termination, n,
       sum(n) OVER (PARTITION BY arm)::BIGINT AS games, planned, w, d, l, plies, runs,
       CASE WHEN adjudicated > 0 OR assist <> 'none' THEN evaluators_text(evaluators, 'these games') END AS warning,
       checkpoint_id, intervention_id
FROM ended JOIN described USING (arm)
ORDER BY cell

-- statement: clusters
-- A cluster is one opening: the number of its games with this termination, and of all its games. Openings whose games
-- have equal terminations are counted together.
WITH opened AS (
    SELECT arm, list_sort(list(cell)) AS ends
    FROM base
    GROUP BY arm, opening_stream, opening_number
),
alike AS (
    SELECT arm, ends, count(*) AS openings FROM opened GROUP BY ALL
)
SELECT c.cell, len(list_filter(a.ends, lambda e: e = c.cell)) AS ended, len(a.ends) AS games,
       whole(sum(a.openings)) AS clusters
FROM (SELECT DISTINCT arm, unnest(ends) AS cell FROM alike) AS c
JOIN alike AS a ON a.arm = c.arm
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, result, score, termination, plies, turns, first_try_legal, adjudication_cp, opening_number,
       intervention, color, run_id
FROM base
ORDER BY run_place(run_id), unit
