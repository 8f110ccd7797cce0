-- title: move quality
-- topic: play
-- question: How many centipawns does the model lose per move?
-- aliases: centipawn loss, move quality by intervention, average centipawn loss, acpl, blunders, centipawns lost
-- paper: beyond Karvonen 2024, section 4.3: the effect of skill edits on the moves
-- kinds: move-quality
-- made by: chessreg run move-quality
-- default: checkpoint, intervention, color, judge; loss, delta_loss, best; n
-- columns:
--   checkpoint: the model whose moves are judged
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   seed [hidden]: seed of a random direction, or of the shuffled labels
--   color: the model's color
--   games_of: source of the moves: opponent, opening and policy of the match, or a dataset and its part
--   judge: the engine that judges, and its version
--   limit: limit of one search of the judge
--   cap [cp]: largest evaluation, in centipawns; larger ones count as this
--   moves: full moves of the game, in bins of ten
--   n_games [games]: games with a move in this bin
--   n [moves]: judged moves
--   illegal [moves]: illegal first tries, which are not judged
--   loss [cp]: mean loss of a move against the judge's best one, with its interval; openings are resampled, or games from the standard position
--   median_loss [cp]: median over openings of the median loss of a game's moves, with its interval
--   delta_loss [cp]: mean loss minus that of the model without intervention, games from the same openings
--   best [%]: moves that lose nothing
--   runs: the runs that judged
--   done [games]: completed units
--   planned [games]: units of the runs
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
-- statistics:
--   loss = mean(lost, judged)
--   median_loss = median(middle)
--   delta_loss = mean_difference(lost, judged, base_lost, base_judged)
--   best = percent(faultless, judged)
-- plot: move quality
--   aliases: centipawn loss by intervention
--   form: bars
--   x: games_of
--   y: loss
--   series: intervention, checkpoint, color, judge, limit, cap
--   spread: seed
--   where: moves = 'all'
-- plot: move quality by move
--   aliases: centipawn loss by move
--   form: bars
--   x: moves
--   y: loss
--   series: intervention, checkpoint, color, judge, limit, cap
--   spread: seed
--   panels: games_of
--   where: moves <> 'all'

-- statement: judged_runs
-- One row per run with the settings that all of its games share.
SELECT r.run_id, r.run, r.done, r.planned, q.judge_limit AS "limit", q.cap, p.run_id AS play_id,
       coalesce(s.dataset, q.dataset) AS dataset
FROM scoped AS r
JOIN move_quality_run AS q ON q.run_id = r.run_id
LEFT JOIN runs AS p ON 'run:' || p.spec_hash = q.play
LEFT JOIN datasets AS s ON s.reference = q.dataset

-- statement: cells
-- One row per judged game, with its arm: its match in the play run (a ladder has several), or the dataset. Arms of one
-- protocol differ in their intervention alone.
SELECT g.*, c.checkpoint, coalesce(i.intervention, 'none') AS intervention, i.vector_seed AS seed,
       e.name || ' ' || e.version AS judge,
       dense_rank() OVER (ORDER BY c.place, g.color, g.games_of, e.name, e.version, g.engine_id,
                                   g."limit", g.cap) AS protocol,
       dense_rank() OVER (ORDER BY c.place, g.color, g.games_of, e.name, e.version, g.engine_id,
                                   g."limit", g.cap, g.intervention_id IS NOT NULL, i.intervention,
                                   i.vector_seed, i.vector_name, g.intervention_id) AS arm
FROM (
    SELECT j.* EXCLUDE (play_id, dataset), p.unit, p.attempt_id, p.color, p.game,
           coalesce(a.opponent || ', ' || a.opening || ', ' || a.policy, j.dataset) AS games_of,
           coalesce(a.opening_stream, '') AS opening_stream, coalesce(o.opening_number, p.game) AS opening_number,
           TRY_CAST(p.checkpoint_id AS UUID) AS checkpoint_id,
           TRY_CAST(p.intervention_id AS UUID) AS intervention_id,
           TRY_CAST(p.engine_id AS UUID) AS engine_id
    FROM move_quality_prediction AS p JOIN judged_runs AS j ON j.run_id = p.run_id
    LEFT JOIN game AS o ON o.run_id = j.play_id AND o.unit = p.game
    LEFT JOIN arms AS a ON a.run_id = o.run_id AND a.match = o.match
    WHERE p.name = 'game'
) AS g
LEFT JOIN checkpoints AS c ON c.checkpoint_id = g.checkpoint_id
LEFT JOIN interventions AS i ON i.intervention_id = g.intervention_id
LEFT JOIN engine AS e ON e.id = g.engine_id

-- statement: base
-- One row per move and table row: every move is in the row `all`, and in the row of its bin.
SELECT 1000 * k.arm + m.number AS cell, k.arm, k.protocol, m.number, m.moves, k.opening_stream, k.opening_number,
       p.run_id, p.unit, p.item AS ply, p.attempt_id, p.value AS loss, p.text, p.best, p.best_cp, p.move_cp, k.game, k.run, k.checkpoint_id,
       k.checkpoint, k.intervention
FROM move_quality_prediction AS p
JOIN cells AS k ON k.run_id = p.run_id AND k.unit = p.unit
CROSS JOIN LATERAL (
    SELECT v.number, v.moves
    FROM (SELECT 1 + p.item // 20 AS number, (p.item // 20 * 10 + 1) || '–' || (p.item // 20 * 10 + 10) AS moves
          UNION ALL SELECT 0, 'all') AS v
) AS m
WHERE p.name = 'centipawn_loss'

-- statement: table
WITH arm AS (
    SELECT arm, checkpoint, checkpoint_id, intervention, intervention_id, seed, color, games_of, judge, "limit", cap,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs
    FROM cells
    GROUP BY ALL
),
progress AS (
    SELECT arm, whole(sum(done)) AS done, whole(sum(planned)) AS planned
    FROM (SELECT DISTINCT arm, run_id, done, planned FROM cells) GROUP BY arm
)
SELECT b.cell, a.checkpoint, a.intervention, a.seed, a.color, a.games_of, a.judge, a."limit", a.cap, b.moves,
       count(DISTINCT (b.run_id, b.unit)) AS n_games, count(b.loss) AS n, count(*) - count(b.loss) AS illegal, a.runs,
       p.done, p.planned, a.checkpoint_id, a.intervention_id
FROM base AS b JOIN arm AS a ON a.arm = b.arm JOIN progress AS p ON p.arm = b.arm
GROUP BY ALL
ORDER BY b.cell

-- statement: clusters
-- A cluster is one opening; the same row has the moves of the plain model from the same opening.
WITH opened AS (
    SELECT protocol, arm, number, cell, opening_stream, opening_number,
           sum(TRY_CAST(loss AS DECIMAL(18, 3)))::DOUBLE AS lost, count(loss) AS judged, median(loss) AS middle,
           count(*) FILTER (loss = 0) AS faultless
    FROM base
    GROUP BY ALL
),
plain AS (
    SELECT protocol, arm FROM (SELECT DISTINCT protocol, arm, intervention_id FROM cells) WHERE intervention_id IS NULL
)
SELECT o.cell, o.lost, o.judged, o.middle, o.faultless, b.lost AS base_lost, b.judged AS base_judged,
       count(*) AS clusters
FROM opened AS o
LEFT JOIN plain AS p ON p.protocol = o.protocol AND p.arm <> o.arm
LEFT JOIN opened AS b ON b.arm = p.arm AND b.number = o.number AND b.opening_stream = o.opening_stream
    AND b.opening_number = o.opening_number
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, game, ply, text AS move, loss,
       best, best_cp, move_cp, intervention, run_id
FROM base
ORDER BY run_place(run_id), unit, ply
