-- title: training settings
-- aliases: model hyperparameters, karvonen table 5
-- paper: Karvonen 2024, Table 5 and Appendix A
-- kinds: train
-- made by: chessreg run train
-- columns:
--   checkpoint: the model
--   source: where its weights come from
--   optimizer: what it was trained with; empty where nobody recorded it
--   schedule: how the learning rate falls
--   learning_rate: the largest
--   final_learning_rate: the smallest, at the end
--   warmup_steps [steps]: until the full rate
--   weight_decay: on matrices
--   beta1: AdamW's
--   beta2: AdamW's
--   grad_clip: largest gradient norm
--   batch_tokens [characters]: in one update
--   block_size [characters]: the context
--   steps [steps]: updates
--   tokens_seen [characters]: in all
--   dropout: share of activations dropped
--   d_model: width of the residual stream
--   heads: attention heads
--   layers [layers]: blocks
--   parameters: with embeddings
--   without_embeddings: parameters without embeddings
--   run: the training run, where it was trained here
--   checkpoint_id [hidden]: its id

-- statement: trained
-- What a training run's spec says, and what the training script left in an imported checkpoint.
SELECT c.checkpoint_id, c.checkpoint, c.place AS checkpoint_place, c.source_format AS source,
       c.d_model, c.heads, c.layers, c.parameters,
       c.parameters_without_embeddings AS without_embeddings, c.tokens_seen, k.block_size, k.run_id,
       r.spec AS spec, json_extract(k.detail, '$.source.config') AS config, json_extract(k.detail, '$.source') AS origin
FROM checkpoints AS c
JOIN checkpoint AS k ON k.id = c.checkpoint_id
LEFT JOIN runs AS r ON r.run_id = k.run_id
WHERE NOT c.random_init AND c.source_format <> 'external' AND (k.run_id IS NULL OR k.run_id IN (SELECT run_id FROM scoped))

-- statement: cells
SELECT t.checkpoint_id, t.checkpoint, t.checkpoint_place, t.source, t.run_id,
       CASE WHEN t.spec IS NOT NULL THEN json_extract_string(t.spec, '$.optimizer')
            WHEN t.config IS NOT NULL THEN 'adamw' END AS optimizer,
       CASE WHEN t.spec IS NOT NULL THEN json_extract_string(t.spec, '$.schedule')
            WHEN json_extract_string(t.config, '$.decay_lr') = 'true' THEN 'cosine' END AS schedule,
       coalesce(json_extract_string(t.spec, '$.learning_rate'), json_extract_string(t.config, '$.learning_rate'))::DOUBLE
           AS learning_rate,
       coalesce(round(json_extract_string(t.spec, '$.learning_rate')::DOUBLE
                      * json_extract_string(t.spec, '$.final_fraction')::DOUBLE, 12),
                json_extract_string(t.config, '$.min_lr')::DOUBLE) AS final_learning_rate,
       coalesce(json_extract_string(t.spec, '$.warmup_steps'), json_extract_string(t.config, '$.warmup_iters'))::BIGINT
           AS warmup_steps,
       coalesce(json_extract_string(t.spec, '$.weight_decay'), json_extract_string(t.config, '$.weight_decay'))::DOUBLE
           AS weight_decay,
       coalesce(json_extract_string(t.spec, '$.beta1'), json_extract_string(t.config, '$.beta1'))::DOUBLE AS beta1,
       coalesce(json_extract_string(t.spec, '$.beta2'), json_extract_string(t.config, '$.beta2'))::DOUBLE AS beta2,
       coalesce(json_extract_string(t.spec, '$.grad_clip'), json_extract_string(t.config, '$.grad_clip'))::DOUBLE
           AS grad_clip,
       coalesce(json_extract_string(t.spec, '$.batch_tokens')::BIGINT,
                json_extract_string(t.config, '$.batch_size')::BIGINT * t.block_size
                    * coalesce(json_extract_string(t.config, '$.gradient_accumulation_steps')::BIGINT, 1))
           AS batch_tokens,
       t.block_size,
       coalesce(json_extract_string(t.spec, '$.steps'), json_extract_string(t.origin, '$.iter_num'),
                json_extract_string(t.config, '$.max_iters'))::BIGINT AS steps,
       t.tokens_seen,
       CASE WHEN t.spec IS NOT NULL THEN 0.0
            ELSE json_extract_string(t.config, '$.dropout')::DOUBLE END AS dropout,
       t.d_model, t.heads, t.layers, t.parameters, t.without_embeddings
FROM trained AS t

-- statement: base
SELECT dense_rank() OVER (ORDER BY checkpoint_place) AS cell, cells.*, r.run,
       NULL::UUID AS attempt_id
FROM cells LEFT JOIN runs AS r ON r.run_id = cells.run_id

-- statement: table
SELECT cell, checkpoint, source, optimizer, schedule, learning_rate, final_learning_rate, warmup_steps, weight_decay,
       beta1, beta2, grad_clip, batch_tokens, block_size, steps, tokens_seen, dropout, d_model, heads, layers, parameters,
       without_embeddings, run, checkpoint_id
FROM base
ORDER BY cell

-- statement: rows
SELECT b.run_id, m.unit, m.name, m.step, m.value, b.run, b.checkpoint
FROM base AS b JOIN metric_point AS m ON m.run_id = b.run_id
ORDER BY run_place(b.run_id), m.unit, m.name, m.step
