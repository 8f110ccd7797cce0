-- title: wins by level
-- topic: play
-- question: How often does the model win, draw and lose against each opponent and Stockfish level?
-- aliases: ladder, wins draws and losses by level, junkin wins, win rate, winrate, win rates, results by level,
--       stockfish results, stockfish level, results against stockfish, games played, number of games, how many
--       games, how good is the model, who won, how many games did it lose, games lost and won
-- paper: Junkin 2025, the figures of wins against Stockfish's levels (section 4 and Appendix I)
-- kinds: play, imported-games, imported-sweep
-- made by: chessreg run play
-- default: checkpoint, intervention, opponent, color; win, draw, score; n
-- columns:
--   checkpoint: the model that played
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   origin: ours, or imported
--   assist: when Stockfish played the model's move; results with help are not the model's own
--   opponent: the opponent as requested
--   level [hidden]: the engine's skill level
--   limit [hidden]: limit of the engine for one move
--   engine_version: the engine's version
--   color: the model's color; both: half of the games with each, or an import that does not separate the colors
--   opening: standard, random:PLIES or book:DIGEST
--   policy: how the model's move is chosen
--   rules: further settings that differ from the defaults of `run play`
--   evaluator: the engine that evaluated positions, for adjudication, draws or assisted moves; several: the row mixes
--       them; empty: none, or not recorded
--   n [games]: games played
--   planned [games]: games planned in these runs
--   w [games]: won
--   d [games]: drawn
--   l [games]: lost
--   unscored [games]: no score under this scoring policy
--   adjudicated [games]: stopped and decided by the engine's evaluation
--   win [%]: of the scored games, with its interval; openings are resampled, or games from the standard position
--   draw [%]: likewise
--   loss [%]: likewise
--   score: points per scored game
--   assisted [plies]: plies that Stockfish played for the model, in all its games
--   runs: the runs that played
--   warning [hidden]: that games without a result are scored by Stockfish's evaluation; that several engines evaluated
--       positions
--   seed [hidden]: seed of a random direction, or of the shuffled labels
--   checkpoint_id [hidden]: its id
--   intervention_id [hidden]: its id
-- statistics:
--   win = percent(won, scored)
--   draw = percent(drawn, scored)
--   loss = percent(lost, scored)
--   score = score(points, scored)
-- plot: wins by level
--   aliases: win draw and loss by level
--   form: lines
--   x: level
--   y: win
--   beside: draw, loss
--   series: checkpoint, intervention, origin, assist, color, limit, policy, engine_version
--   spread: seed
--   panels: opening
--   where: level >= 0

-- statement: cells
-- One row per arm. The two colors of a ladder share a cell, separate from matches with a single color.
SELECT *, dense_rank() OVER (ORDER BY own_name, checkpoint_place, intervention_id IS NOT NULL, intervention,
                                      vector_seed, vector_name, intervention_id, origin DESC, assist <> 'none', assist, colors, engine_version, engine_id,
                                      level IS NOT NULL, level, opponent DESC, opening, policy, move_limit, rules) AS cell
FROM (
    SELECT a.*, s.run, s.kind, CASE WHEN starts_with(s.kind, 'imported-') THEN 'imported' ELSE 'ours' END AS origin,
           coalesce(m.colors, CASE WHEN min(a.color) OVER same <> max(a.color) OVER same THEN 'both' ELSE a.color END)
               AS colors
    FROM arms AS a JOIN scoped AS s ON s.run_id = a.run_id JOIN imported_arms AS m
        ON m.run_id = a.run_id AND m.match = a.match
    WINDOW same AS (PARTITION BY a.run_id, a.opponent)
)

-- statement: base
-- Games, and imported counts without single games: `n` equal games per row.
SELECT c.cell, g.run_id, g.unit, g.attempt_id, c.run, c.checkpoint_id, c.checkpoint, c.intervention, c.opponent, c.color,
       c.opening_stream, g.opening_number,
       game_score($scoring, g.result, g.termination, g.adjudication_cp, c.color) AS score, 1::BIGINT AS n,
       g.result, g.termination, g.adjudication_cp, g.plies, false AS counted
FROM game AS g JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match
UNION ALL
SELECT c.cell, p.run_id, p.unit, p.attempt_id, c.run, c.checkpoint_id, c.checkpoint, c.intervention, c.opponent, c.color,
       c.opening_stream, NULL, CASE p.name WHEN 'wins' THEN 1.0 WHEN 'losses' THEN 0.0
                                         ELSE CASE WHEN $scoring = 'paper' THEN 0.5 END END,
       whole(p.value), p.name, NULL, NULL, NULL, true
FROM metric_point AS p JOIN cells AS c ON c.run_id = p.run_id AND c.match = p.unit AND c.kind = 'imported-sweep'
WHERE p.name IN ('wins', 'draws', 'losses')

-- statement: table
WITH played AS (
    SELECT cell, whole(sum(n)) AS n, whole(sum(n) FILTER (score = 1)) AS w, whole(sum(n) FILTER (score = 0.5)) AS d,
           whole(sum(n) FILTER (score = 0)) AS l, whole(sum(n) FILTER (score IS NULL)) AS unscored,
           count(*) FILTER (result = '*' AND adjudication_cp IS NOT NULL) AS adjudicated,
           sum(score * n) / sum(n) FILTER (score IS NOT NULL) AS mean_score
    FROM base GROUP BY cell
),
arm AS (
    SELECT cell, checkpoint, checkpoint_id, intervention, intervention_id, vector_seed AS seed, origin, assist, opponent, level, "limit",
           engine_version, colors AS color, opening, policy, rules, whole(sum(planned)) AS planned,
           all_evaluators(list(evaluators)) AS evaluators,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs
    FROM cells GROUP BY ALL
),
helped AS (
    SELECT c.cell, whole(sum(g.assisted)) AS assisted
    FROM play_game AS g JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match GROUP BY c.cell
)
SELECT cell, checkpoint, intervention, seed, origin, assist, opponent, level, "limit", engine_version, color, opening, policy, rules,
       nullif(array_to_string(evaluators, ', '), '') AS evaluator, n, planned, coalesce(w, 0) AS w, coalesce(d, 0) AS d, coalesce(l, 0) AS l, coalesce(unscored, 0) AS unscored,
       adjudicated, assisted, runs,
       nullif(concat_ws('; ', unfinished_text(adjudicated, n),
                        CASE WHEN adjudicated > 0 OR assist <> 'none' THEN evaluators_text(evaluators, 'these games') END), '') AS warning,
       checkpoint_id, intervention_id
FROM arm JOIN played USING (cell) LEFT JOIN helped USING (cell)
ORDER BY cell

-- statement: clusters
-- A cluster is one opening, with the model's games of both colors. For imported counts it is one game.
WITH opened AS (
    SELECT cell, count(*) FILTER (score = 1) AS won, count(*) FILTER (score = 0.5) AS drawn,
           count(*) FILTER (score = 0) AS lost, count(score) AS scored, 1 AS openings
    FROM base WHERE NOT counted GROUP BY cell, opening_stream, opening_number
    UNION ALL
    SELECT cell, (score = 1)::BIGINT, (score = 0.5)::BIGINT, (score = 0)::BIGINT, 1, n
    FROM base WHERE counted AND score IS NOT NULL AND n > 0
)
SELECT cell, won, drawn, lost, scored, won + drawn / 2 AS points, whole(sum(openings)) AS clusters
FROM opened WHERE scored > 0
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT CASE WHEN NOT counted THEN run || ':' || unit END AS board, run, unit, result, score, n, termination, plies,
       opponent, color, run_id
FROM base
ORDER BY run_place(run_id), unit, result
