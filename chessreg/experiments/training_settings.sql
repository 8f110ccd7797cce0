-- title: training settings
-- topic: training
-- question: With which architecture and hyperparameters was each model trained?
-- aliases: model hyperparameters, karvonen table 5, junkin table 2, hyperparameters, model size, architecture, model
--       sizes, parameters, learning rate of each model, learning rate, number of parameters
-- paper: Karvonen 2024, Table 5 and Appendix A; Junkin and Nathanson 2025, Appendix D.3
-- kinds: train, finetune
-- also with: EXISTS (SELECT 1 FROM checkpoint AS c WHERE c.source_format NOT IN ('external', 'random-init'))
-- made by: chessreg run train
-- default: checkpoint, optimizer, learning_rate, batch_tokens, steps, d_model, layers; parameters
-- columns:
--   checkpoint: the model
--   source: source of its weights
--   optimizer: optimizer of its training; empty: not recorded
--   schedule: schedule of the learning rate
--   learning_rate: largest learning rate
--   final_learning_rate: learning rate at the end
--   warmup_steps [steps]: steps until the largest learning rate
--   weight_decay: weight decay of matrices
--   beta1: beta1 of AdamW
--   beta2: beta2 of AdamW
--   grad_clip: largest gradient norm
--   batch_tokens [characters]: characters in one update
--   batch_moves [moves]: supervised moves in one update, for a model that learns moves
--   block_size [characters]: length of the context
--   steps [steps]: number of updates
--   tokens_seen [characters]: characters in all updates
--   dropout: share of activations dropped
--   d_model: width of the residual stream
--   heads: attention heads
--   layers [layers]: blocks
--   parameters: with embeddings
--   without_embeddings: parameters without embeddings
--   run: the training run; none: trained elsewhere
--   checkpoint_id [hidden]: id of the checkpoint

-- statement: ran
SELECT run_id, optimizer, schedule, learning_rate, final_fraction, warmup_steps, weight_decay, beta1, beta2, grad_clip,
       CASE WHEN coalesce(batch_moves, 0) = 0 THEN batch_tokens END AS batch_tokens, nullif(batch_moves, 0) AS batch_moves, steps
FROM train_run
UNION ALL
SELECT run_id, 'adamw', 'cosine', learning_rate, final_fraction, warmup_steps, weight_decay, beta1, beta2, grad_clip,
       NULL, batch_positions, steps
FROM finetune_run

-- statement: trained
-- The settings of a training run, or those that the training script saved in an imported checkpoint.
SELECT c.checkpoint_id, c.checkpoint, c.place AS checkpoint_place, c.source_format AS source,
       c.d_model, c.heads, c.layers, c.parameters,
       c.parameters_without_embeddings AS without_embeddings, c.tokens_seen, k.block_size, k.run_id,
       r.run_id IS NOT NULL AS here, r.* EXCLUDE (run_id), o.* EXCLUDE (checkpoint_id)
FROM checkpoints AS c
JOIN checkpoint AS k ON k.id = c.checkpoint_id
LEFT JOIN ran AS r ON r.run_id = k.run_id
LEFT JOIN imported_training AS o ON o.checkpoint_id = c.checkpoint_id
WHERE NOT c.random_init AND c.source_format <> 'external' AND (k.run_id IS NULL OR k.run_id IN (SELECT run_id FROM scoped))

-- statement: cells
SELECT t.checkpoint_id, t.checkpoint, t.checkpoint_place, t.source, t.run_id,
       CASE WHEN t.here THEN t.optimizer WHEN t.script_told THEN 'adamw' END AS optimizer,
       CASE WHEN t.here THEN t.schedule WHEN t.script_decays THEN 'cosine' END AS schedule,
       coalesce(t.learning_rate, t.script_learning_rate) AS learning_rate,
       coalesce(round(t.learning_rate * t.final_fraction, 12), t.script_final_learning_rate) AS final_learning_rate,
       coalesce(t.warmup_steps, t.script_warmup_steps) AS warmup_steps,
       coalesce(t.weight_decay, t.script_weight_decay) AS weight_decay, coalesce(t.beta1, t.script_beta1) AS beta1,
       coalesce(t.beta2, t.script_beta2) AS beta2, coalesce(t.grad_clip, t.script_grad_clip) AS grad_clip,
       coalesce(t.batch_tokens, t.script_batch_rows * t.block_size) AS batch_tokens, t.batch_moves, t.block_size,
       coalesce(t.steps, t.script_steps) AS steps, t.tokens_seen,
       CASE WHEN t.here THEN 0.0 ELSE t.script_dropout END AS dropout,
       t.d_model, t.heads, t.layers, t.parameters, t.without_embeddings
FROM trained AS t

-- statement: base
SELECT dense_rank() OVER (ORDER BY checkpoint_place) AS cell, cells.*, r.run,
       NULL::UUID AS attempt_id
FROM cells LEFT JOIN runs AS r ON r.run_id = cells.run_id

-- statement: table
SELECT cell, checkpoint, source, optimizer, schedule, learning_rate, final_learning_rate, warmup_steps, weight_decay,
       beta1, beta2, grad_clip, batch_tokens, batch_moves, block_size, steps, tokens_seen, dropout, d_model, heads, layers,
       parameters, without_embeddings, run, checkpoint_id
FROM base
ORDER BY cell

-- statement: rows
SELECT b.run_id, m.unit, m.name, m.step, m.value, b.run, b.checkpoint
FROM base AS b JOIN metric_point AS m ON m.run_id = b.run_id
ORDER BY run_place(b.run_id), m.unit, m.name, m.step
