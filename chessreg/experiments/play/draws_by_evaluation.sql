-- title: draws by evaluation
-- topic: play
-- question: Were the drawn games won, lost or equal by the engine's evaluation?
-- aliases: draws dist, junkin draws, draws, drawn games
-- paper: Junkin 2025, his repository's figure of evaluations when the agent draws
-- kinds: play
-- needs: r.spec ->> 'evaluate_draws' <> 'none'
--       AND EXISTS (SELECT 1 FROM game AS g WHERE g.run_id = r.id AND g.result = '1/2-1/2')
-- made by: chessreg run play
-- default: checkpoint, intervention, opponent, evaluation; share; n
-- columns:
--   checkpoint: the model that played
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   assist: when Stockfish played the model's move
--   policy: how the model chose its moves
--   opening: source of the openings
--   move_limit [moves]: full moves of the model after which a game is stopped
--   rules [hidden]: other settings that differ from the defaults of `run play`
--   opponent: the opponents whose games are counted
--   evaluation: evaluation for the model before its last move of a drawn game: mate in n, or centipawns
--   n [games]: draws with this evaluation
--   share [%]: share of the evaluated draws; openings are resampled, or games from the standard position
--   draws [games]: evaluated draws (--evaluate-draws)
--   others [games]: draws without an evaluation
--   games [games]: games played
--   evaluator: engine that evaluated the draws; several: the row mixes them; empty: not recorded
--   runs: the runs that played
--   warning [hidden]: that several engines evaluated the draws
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
-- statistics:
--   share = percent(there, draws)
-- plot: draws by evaluation
--   form: bars
--   x: evaluation
--   y: share
--   series: checkpoint, intervention, assist, policy, opening

-- statement: cells
-- One row per arm: all opponents of a model together, for equal rules and choice of moves.
SELECT *, dense_rank() OVER (ORDER BY own_name, checkpoint_place, intervention_id IS NOT NULL, intervention,
                                      vector_seed, vector_name, intervention_id, assist <> 'none', assist, policy, opening, move_limit, rules) AS arm
FROM arms
JOIN (SELECT run_id, run FROM scoped) USING (run_id)

-- statement: base
SELECT 100 * c.arm + g.bin AS cell, g.*, c.arm, c.run, c.checkpoint, c.checkpoint_id, c.intervention, c.opponent,
       c.opening_stream
FROM (
    SELECT run_id, unit, match, attempt_id, opening_number, result, termination, plies, draw_cp,
           CASE WHEN draw_cp IS NULL THEN 99
                WHEN draw_cp >= 9995 THEN 10000 - draw_cp
                WHEN draw_cp > 5000 THEN 6
                WHEN draw_cp >= 100 THEN 7
                WHEN draw_cp >= 50 THEN 8
                WHEN draw_cp >= 10 THEN 9
                WHEN draw_cp > -10 THEN 10
                WHEN draw_cp > -50 THEN 11
                WHEN draw_cp > -100 THEN 12
                WHEN draw_cp >= -5000 THEN 13
                ELSE 14 END AS bin
    FROM play_game
    WHERE result = '1/2-1/2'
) AS g
JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match

-- statement: table
WITH counted AS (
    SELECT arm, count(*) FILTER (bin < 99) AS draws, count(*) FILTER (bin = 99) AS others FROM base GROUP BY arm
),
played AS (
    SELECT c.arm, count(*) AS games FROM game AS g JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match GROUP BY c.arm
),
described AS (
    SELECT arm, checkpoint, checkpoint_id, intervention, intervention_id, assist, policy, opening, move_limit, rules,
           string_agg(DISTINCT opponent, ', ' ORDER BY opponent) AS opponent,
           all_evaluators(list(evaluators)) AS evaluators,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs
    FROM cells GROUP BY ALL
)
SELECT b.cell, d.checkpoint, d.intervention, d.assist, d.policy, d.opening, d.move_limit, d.rules, d.opponent,
       ['mate in 1', 'mate in 2', 'mate in 3', 'mate in 4', 'mate in 5', 'mate in 6 or more', 'from +100', '+50 to +99',
        '+10 to +49', '-9 to +9', '-49 to -10', '-99 to -50', 'to -100', 'mated'][any_value(b.bin)] AS evaluation,
       count(*) AS n, c.draws, c.others, p.games,
       nullif(array_to_string(d.evaluators, ', '), '') AS evaluator, d.runs, evaluators_text(d.evaluators, 'these games') AS warning, d.checkpoint_id, d.intervention_id
FROM base AS b JOIN described AS d USING (arm) JOIN counted AS c USING (arm) JOIN played AS p USING (arm)
WHERE b.bin < 99
GROUP BY ALL
ORDER BY b.cell

-- statement: none
SELECT CASE WHEN count(*) FILTER (g.result = '1/2-1/2') = 0 THEN 'none of ' || count(*) || ' games was drawn'
            ELSE 'drawn games: ' || count(*) FILTER (g.result = '1/2-1/2')
                 || ', none of them evaluated; chessreg run play --evaluate-draws nodes=10000 evaluates them' END AS why
FROM play_game AS g JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match
HAVING count(*) > 0 AND count(g.draw_cp) = 0

-- statement: clusters
-- A cluster is one opening: the number of its evaluated draws with this evaluation.
WITH opened AS (
    SELECT arm, list_sort(list(cell)) AS ends
    FROM base WHERE bin < 99
    GROUP BY arm, opening_stream, opening_number
),
alike AS (
    SELECT arm, ends, count(*) AS openings FROM opened GROUP BY ALL
)
SELECT c.cell, len(list_filter(a.ends, lambda e: e = c.cell)) AS there, len(a.ends) AS draws,
       whole(sum(a.openings)) AS clusters
FROM (SELECT DISTINCT arm, unnest(ends) AS cell FROM alike) AS c
JOIN alike AS a ON a.arm = c.arm
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, draw_cp, termination, plies, opponent, run_id
FROM base
ORDER BY run_place(run_id), unit
