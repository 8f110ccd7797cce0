-- title: square accuracy by ply
-- topic: probes
-- question: How does the accuracy of board probes change along the game?
-- aliases: accuracy by ply, probe accuracy by ply, accuracy over the game, accuracy during the game, late positions of
--       the game, opening and endgame accuracy
-- paper: beyond Karvonen 2024, Table 1: accuracy by ply
-- kinds: probe
-- needs: r.spec ->> 'label' NOT IN ('skill', 'rating')
-- made by: chessreg run probe
-- default: checkpoint, twin_of, label, positions, layer, ply; accuracy, boards; n_games
-- columns:
--   checkpoint: the probed model
--   twin_of: the model whose untrained twin this is
--   label: the label that the probe predicts from the residual stream
--   positions: characters at which the probe reads the residual stream
--   layer: 0-based; the layer that the run's validation games choose
--   ply: half-moves played before the position
--   n_games [games]: test games with that position
--   n [predictions]: squares (or positions) scored at that ply
--   accuracy [%]: right predictions, with its interval; games are resampled
--   boards [%]: positions with every square right
--   run: the probe run
--   done [units]: completed units
--   planned [units]: units of the run
--   model [hidden]: the model, or the model of the untrained twins
--   fit [hidden]: fit 1, fit 2, …; runs with the same number differ in seed and model alone
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   accuracy = percent(correct, n)
--   boards = percent(exact, positions)
-- plot: square accuracy by ply
--   form: lines
--   x: ply
--   y: accuracy
--   series: model, fit
--   spread: run
--   panels: label, positions

-- statements of: probe_f1_by_class.sql to cells

-- statement: numbered
SELECT *, coalesce(twin_of || ', untrained', checkpoint) AS model,
       'fit ' || dense_rank() OVER (PARTITION BY label, positions ORDER BY settings) AS fit,
       dense_rank() OVER (ORDER BY label, positions, family, twin_of IS NOT NULL, checkpoint_place, created_at,
                                   run_id) AS place
FROM cells

-- statement: base
-- One row per test game and position that was read. right_at has the number of right squares at each.
SELECT 10000 * k.place + m.ply AS cell, s.run_id, s.unit, s.attempt_id, s.split, s.item, m.ply, k.layer,
       s.n // nullif(s.positions, 0) AS n, s.right_at[s.i + 1] AS correct, k.place, k.label, k.run,
       k.checkpoint_id, k.checkpoint
FROM (
    SELECT *, unnest(range(len(right_at))) AS i
    FROM (SELECT run_id, unit, split, item, attempt_id, n, positions, right_at, ply_first, ply_step, ply_at
          FROM probe_score WHERE split = 'test' AND item >= 0)
) AS s
JOIN numbered AS k ON k.run_id = s.run_id AND k.unit = s.unit
CROSS JOIN LATERAL (
    SELECT CASE WHEN s.ply_at IS NULL THEN whole(s.ply_first + s.i * s.ply_step::HUGEINT)
                ELSE s.ply_at[s.i + 1] END AS ply
) AS m
WHERE m.ply BETWEEN 0 AND 9999

-- statement: table
SELECT b.cell, k.checkpoint, k.twin_of, k.label, k.positions, k.layer, b.ply, count(*) AS n_games,
       whole(sum(b.n)) AS n, k.run, k.done, k.planned, k.model, k.fit, k.checkpoint_id, k.run_id
FROM base AS b JOIN numbered AS k ON k.place = b.place
GROUP BY ALL
ORDER BY b.cell

-- statement: clusters
-- A cluster is one game.
SELECT cell, correct, n, (correct = n)::BIGINT AS exact, 1 AS positions, count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, item AS game, ply, layer, n, correct, label, run_id
FROM base
ORDER BY run_place(run_id), unit, split, item, ply
