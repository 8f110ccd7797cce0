-- title: accuracy by square
-- topic: probes
-- question: How accurately does the probe predict each square?
-- aliases: square accuracy, probe accuracy by square, heat map, per square accuracy, worst squares,
--       squares that the probe gets wrong
-- paper: beyond Karvonen 2024, Table 1: accuracy by square
-- kinds: probe
-- needs: r.spec ->> 'label' NOT IN ('skill', 'rating')
-- made by: chessreg run probe
-- default: checkpoint, twin_of, label, positions, layer, split, square; accuracy
-- columns:
--   checkpoint: the probed model
--   twin_of: the model whose untrained twin this is
--   label: the label that the probe predicts from the residual stream
--   positions: characters at which the probe reads the residual stream
--   layer: 0-based
--   split: validation or test
--   square: a1 to h8
--   accuracy [%]: right predictions on this square
--   run: the probe run
--   done [units]: completed units
--   planned [units]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- plot: accuracy by square
--   aliases: square accuracy boards
--   form: board
--   x: square
--   y: accuracy
--   series: checkpoint, label, positions, split, run
--   panels: layer

-- statement: cells
SELECT p.run_id, p.unit, p.layer, p.label, p.positions, p.checkpoint_id, c.checkpoint,
       CASE WHEN c.random_init THEN coalesce(parent.checkpoint, right(replace(c.parent_id::VARCHAR, '-', ''), 6)) END
           AS twin_of,
       coalesce(parent.place, c.place) AS family, c.place AS checkpoint_place, r.run, r.done, r.planned, r.created_at
FROM probe AS p
JOIN scoped AS r ON r.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id
LEFT JOIN checkpoints AS parent ON c.random_init AND parent.checkpoint_id = c.parent_id

-- statement: base
SELECT dense_rank() OVER (ORDER BY label, positions, family, twin_of IS NOT NULL, checkpoint_place, created_at,
                                   k.run_id, layer, k.unit, m.name DESC, m.step) AS cell,
       m.run_id, m.unit, m.attempt_id, replace(m.name, '_square_accuracy', '') AS split, m.step AS square,
       100 * m.value AS accuracy, k.* EXCLUDE (run_id, unit)
FROM metric_point AS m JOIN cells AS k ON k.run_id = m.run_id AND k.unit = m.unit
WHERE m.name IN ('validation_square_accuracy', 'test_square_accuracy')

-- statement: table
SELECT cell, checkpoint, twin_of, label, positions, layer, split, square_text(square) AS square, accuracy, run, done,
       planned, checkpoint_id, run_id
FROM base
ORDER BY cell

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, square_text(square) AS square, accuracy, layer, label, run_id
FROM base
ORDER BY run_place(run_id), unit, split, square
