-- title: probe settings
-- topic: probes
-- question: With which settings was each probe fitted?
-- aliases: probe hyperparameters, karvonen table 4, probe learning rate
-- paper: Karvonen 2024, Table 4
-- kinds: probe
-- made by: chessreg run probe
-- default: checkpoint, label, positions, optimizer; learning_rate, weight_decay, epochs; train_games
-- columns:
--   checkpoint: the probed model
--   label: the label that the probe predicts from the residual stream
--   positions: characters at which the probe reads the residual stream
--   optimizer: optimizer of the fit
--   learning_rate: largest learning rate
--   weight_decay: weight decay
--   beta1: decay rate of the first moment
--   beta2: decay rate of the second moment
--   train_games [games]: games fitted on
--   epochs: passes over the fitting games
--   batch_positions [positions]: positions in one step; none: whole games
--   batch_games [games]: games in one step, if it uses whole games
--   layers [layers]: number of probed layers in each run
--   seeds: seeds of the runs
--   runs: the probe runs with these settings
--   checkpoint_id [hidden]: id of the checkpoint

-- statement: cells
SELECT p.run_id, p.unit, p.checkpoint_id, c.checkpoint, c.place AS checkpoint_place, p.label, p.positions,
       p.train_games, p.epochs,
       r.learning_rate,
       r.weight_decay,
       r.beta1, r.beta2,
       CASE WHEN r.batch_games IS NULL THEN r.batch_positions END AS batch_positions, r.batch_games,
       r.seed, r.run, r.kind
FROM probe AS p
JOIN scoped AS s ON s.run_id = p.run_id
JOIN probe_run AS r ON r.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id

-- statement: base
SELECT dense_rank() OVER (ORDER BY checkpoint_place, label, positions, learning_rate, weight_decay, beta1, beta2,
                                   train_games, epochs, batch_positions, batch_games) AS cell,
       k.*, a.attempt_id
FROM cells AS k
LEFT JOIN (SELECT run_id, start, stop, attempt_id FROM unit_range) AS a
    ON a.run_id = k.run_id AND k.unit >= a.start AND k.unit < a.stop

-- statement: table
SELECT cell, checkpoint, label, positions, 'AdamW' AS optimizer, learning_rate, weight_decay, beta1, beta2,
       train_games, epochs, batch_positions, batch_games, count(DISTINCT unit) AS layers,
       string_agg(DISTINCT seed::VARCHAR, ', ' ORDER BY seed::VARCHAR) AS seeds,
       string_agg(DISTINCT run, ', ' ORDER BY run) AS runs, checkpoint_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: rows
SELECT DISTINCT run || ':' || unit AS board, run, unit, label, positions, learning_rate, weight_decay, beta1, beta2,
       train_games, epochs, batch_positions, batch_games, seed, run_id
FROM base
ORDER BY run_place(run_id), unit
