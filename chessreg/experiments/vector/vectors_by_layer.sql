-- title: vectors by layer
-- topic: steering vectors
-- question: Which steering vectors exist, and how large are their norms?
-- aliases: vectors, directions, steering vectors, contrastive vectors, vector norm, skill vectors
-- paper: Karvonen 2024, section 4.1
-- kinds: vector, imported-vector
-- made by: chessreg run vector
-- default: checkpoint, source, positions, layer; norm; games_high, games_low
-- columns:
--   checkpoint: the model
--   source: source of the directions; random and shuffled are controls
--   stands_for: the run whose vectors the control replaces
--   positions: characters at which the residual stream was read
--   layer: 0-based
--   hook_point [hidden]: hook point of the activations
--   norm: length of the vector
--   high_norm: length of the mean residual of the strong games
--   low_norm: length of the mean residual of the weak games
--   games_high [games]: strong games
--   games_low [games]: weak games
--   seed: seed of the run, or of the permuted labels of a shuffled probe; draws of a control differ in it
--   overlap: whole games among these that the model was trained on
--   overlap_model_games [hidden]: number of these games; none: unknown
--   overlap_model_openings [hidden]: games whose first 20 plies the model was trained on
--   overlap_model_positions [hidden]: number of different positions that it was trained on
--   run: the vector run
--   done [layers]: completed units
--   planned [layers]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, v.source, w.seed, r.created_at, v.run_id, v.layer, v.unit) AS cell, v.run_id,
       v.unit, v.layer, v.hook_point, v.source, v.positions, v.norm, v.checkpoint_id, c.checkpoint, r.run, r.done, r.planned, u.attempt_id
FROM vector AS v
JOIN scoped AS r ON r.run_id = v.run_id
LEFT JOIN vector_run AS w ON w.run_id = v.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = v.checkpoint_id
LEFT JOIN unit_range AS u ON u.run_id = v.run_id AND v.unit >= u.start AND v.unit < u.stop

-- statement: table
WITH measured AS (
    SELECT run_id, unit, max(value) FILTER (name = 'norm_high') AS high_norm,
           max(value) FILTER (name = 'norm_low') AS low_norm,
           whole(max(value) FILTER (name = 'games_high')) AS games_high,
           whole(max(value) FILTER (name = 'games_low')) AS games_low
    FROM metric_point WHERE run_id IN (SELECT run_id FROM base) GROUP BY ALL
)
SELECT b.cell, b.checkpoint, b.source, f.run AS stands_for, b.positions, b.layer, b.hook_point, b.norm, m.high_norm,
       m.low_norm, m.games_high, m.games_low, coalesce(p.shuffled_label_control, q.seed) AS seed, coalesce(o.overlap, 'model unknown') AS overlap,
       o.model_games AS overlap_model_games, o.model_openings AS overlap_model_openings,
       o.model_positions AS overlap_model_positions, b.run, b.done, b.planned, b.checkpoint_id, b.run_id
FROM base AS b
LEFT JOIN measured AS m ON m.run_id = b.run_id AND m.unit = b.unit
LEFT JOIN vector_run AS q ON q.run_id = b.run_id
LEFT JOIN probe_run AS p ON q.source = 'shuffled-probe' AND 'run:' || p.spec_hash = q.probe
LEFT JOIN runs AS f ON 'run:' || f.spec_hash = q."of"
LEFT JOIN shared_games AS o ON o.run_id = coalesce(f.run_id, b.run_id)
ORDER BY b.cell

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, layer, source, norm, run_id
FROM base
ORDER BY run_place(run_id), unit
