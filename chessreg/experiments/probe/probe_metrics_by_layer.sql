-- title: probe metrics by layer
-- topic: probes
-- question: How large are accuracy, F1 and AUC of each probe, by layer?
-- aliases: probe metrics, davis table 5, davis table 4, macro f1
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, Table 5
-- kinds: probe
-- made by: chessreg run probe --cache CACHE --test-cache TEST --phase white-origin
-- default: checkpoint, twin_of, label, residual_index, split; accuracy, f1, minus_untrained; n_games
-- columns:
--   checkpoint: the probed model
--   twin_of: the model whose random-init control this is
--   label: the label that the probe predicts; piece is the paper's joint label of color and type
--   source: features of the probe: the residual, an SAE's latents, or a difference of means
--   positions: tokens at which the probe reads; pooled: all phases of one fit, each position read by the probe of its
--       phase
--   phase [hidden]: number of the phase; none: one probe of all phases
--   residual_index: 0 the embeddings, L the output of the L-th block; none: after the final LayerNorm
--   hook_point: hook point of the activations
--   layer [hidden]: 0-based
--   split: validation (held out of fitting) or test
--   n_games [games]: games scored
--   n [predictions]: squares of positions scored
--   accuracy [%]: right predictions, with its interval; games are resampled. It is also weighted recall
--   majority [%]: accuracy of always predicting the most frequent class of the square in the fitting games
--   boards [%]: positions with every square right
--   precision [%]: mean over classes, weighted by their frequency
--   f1 [%]: mean over classes, weighted by their frequency
--   macro_precision [%]: unweighted mean over the classes that occur or are predicted
--   macro_recall [%]: unweighted mean over these classes
--   macro_f1 [%]: unweighted mean over these classes
--   auc: for probes of one phase the ROC-AUC of softmax, each class against the others, weighted by class frequency;
--       for pooled phases the mean over phases
--   auc_logits: the same for raw logits, which have no common zero across classes
--   macro_auc [hidden]: unweighted mean over classes, from softmax
--   macro_auc_logits [hidden]: unweighted mean over classes, from raw logits
--   flat_auc [hidden]: of all classes together, from softmax
--   flat_auc_logits [hidden]: of all classes together, from raw logits
--   untrained [%]: accuracy of the random-init controls at the same tokens and layer
--   minus_untrained [%]: accuracy minus that of the controls, same games
--   twins [models]: random-init controls
--   train_positions [positions]: positions fitted on
--   epochs: passes over the fitting games
--   runs: the probe runs
--   done [units]: completed units
--   planned [units]: units of the runs
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the first of the runs
-- statistics:
--   accuracy = percent(correct, n)
--   majority = percent(majority, majority_n)
--   boards = percent(exact, positions)
--   untrained = percent(base_correct, base_n)
--   minus_untrained = percent_difference(correct, n, base_correct, base_n)
-- plot: probe metrics by layer
--   aliases: davis table 5 lines
--   form: lines
--   x: residual_index
--   y: accuracy
--   baseline: majority
--   series: checkpoint, label
--   spread: runs
--   panels: positions
--   where: split = 'test'

-- statement: cells
-- One row per probe and split. `pool_settings`: settings shared by fits that differ in their phase alone.
-- `family_settings`: settings that the random-init controls of a model share with it.
SELECT p.run_id, p.unit, s.split, p.label, coalesce(r.source, 'residual') AS source, p.positions, r.phase, p.hook_point,
       regexp_replace(p.hook_point, '\.[0-9]+\.', '.*.') AS pattern, p.layer,
       residual_index(p.hook_point, p.layer) AS residual_index, p.train_positions, p.epochs::BIGINT AS epochs,
       p.checkpoint_id AS probed_id,
       c.checkpoint, coalesce(c.random_init, false) AS untrained,
       CASE WHEN c.random_init THEN coalesce(parent.checkpoint, right(replace(c.parent_id::VARCHAR, '-', ''), 6)) END
           AS twin_of,
       coalesce(CASE WHEN c.random_init THEN c.parent_id END, p.checkpoint_id) AS checkpoint_id,
       coalesce(parent.place, c.place) AS family, c.place AS checkpoint_place, o.run, o.done, o.planned, o.created_at,
       settings_text(o.spec, ['phase', 'layers', 'min_positions']) AS pool_settings,
       concat_ws('; ', settings_text(o.spec, ['phase', 'layers', 'min_positions', 'seed', 'replicate', 'cache',
                                              'test_cache']), u.settings) AS family_settings
FROM probe AS p
JOIN scoped AS o ON o.run_id = p.run_id
JOIN probe_run AS r ON r.run_id = p.run_id
LEFT JOIN probe_caches AS u ON u.run_id = p.run_id
JOIN (SELECT DISTINCT run_id, unit, split FROM score WHERE item >= 0 AND counts IS NOT NULL) AS s
    ON s.run_id = p.run_id AND s.unit = p.unit
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id
LEFT JOIN checkpoints AS parent ON c.random_init AND parent.checkpoint_id = c.parent_id

-- statement: pools
SELECT *, dense_rank() OVER (ORDER BY label, family, untrained, checkpoint_place, pool_settings, pattern,
                                      residual_index NULLS LAST, layer, split) AS pool,
       first_value(created_at) OVER (PARTITION BY label, probed_id, pool_settings ORDER BY created_at, run_id)
           AS begun
FROM cells

-- statement: members
-- The probes of each cell: a probe alone, and all phases of a pool that has several, each position read by its phase's.
SELECT *, dense_rank() OVER (ORDER BY label, family, untrained, checkpoint_place, begun, pool_settings,
                                      residual_index NULLS LAST, pattern, layer, split, pooled,
                                      CASE WHEN NOT pooled THEN phase END NULLS FIRST,
                                      CASE WHEN NOT pooled THEN created_at END, CASE WHEN NOT pooled THEN run_id END)
           AS cell
FROM (
    SELECT *, false AS pooled FROM pools
    UNION ALL
    SELECT *, true AS pooled FROM pools
    WHERE pool IN (SELECT pool FROM pools WHERE phase IS NOT NULL GROUP BY pool HAVING count(DISTINCT phase) > 1)
)

-- statement: facts
-- The settings that a cell's probes share.
SELECT cell, any_value(checkpoint) AS checkpoint, any_value(twin_of) AS twin_of, any_value(label) AS label,
       any_value(source) AS source, CASE WHEN bool_or(pooled) THEN 'pooled' ELSE any_value(positions) END AS positions,
       CASE WHEN NOT bool_or(pooled) THEN any_value(phase) END AS phase, any_value(hook_point) AS hook_point,
       any_value(residual_index) AS residual_index, any_value(layer) AS layer, any_value(split) AS split,
       any_value(untrained) AS untrained, any_value(checkpoint_id) AS family_id,
       any_value(family_settings) AS family_settings, whole(sum(train_positions)) AS train_positions,
       any_value(epochs) AS epochs, string_agg(DISTINCT run, ', ' ORDER BY run) AS runs,
       whole(sum(done)) AS done, whole(sum(planned)) AS planned,
       any_value(probed_id) AS checkpoint_id, arg_min(run_id, (created_at, run_id)) AS run_id
FROM members
GROUP BY cell

-- statement: base
-- One row per game and probe of a cell.
SELECT m.cell, s.run_id, s.unit, s.attempt_id, s.split, s.item, s.layer, s.n, s.correct, s.majority, s.exact,
       s.positions, octet_length(t.counts) // 12 AS classes, hex(t.counts) AS digits, m.run, m.checkpoint_id,
       m.checkpoint, m.label, m.hook_point
FROM probe_score AS s
JOIN score AS t ON t.run_id = s.run_id AND t.unit = s.unit AND t.split = s.split AND t.item = s.item
JOIN members AS m ON m.run_id = s.run_id AND m.unit = s.unit AND m.split = s.split
WHERE s.item >= 0 AND t.counts IS NOT NULL

-- statement: by_class
-- Counts of each class over all games, with precision, recall and F1; without a prediction, precision is 0 as in the
-- author's library.
SELECT cell, class, tp, fp, fn, tp + fn AS support,
       CASE WHEN tp + fp > 0 THEN tp / (tp + fp) ELSE 0 END AS precision_of,
       CASE WHEN tp + fn > 0 THEN tp / (tp + fn) ELSE 0 END AS recall_of,
       CASE WHEN tp + fp + fn > 0 THEN 2 * tp / (2 * tp + fp + fn) ELSE 0 END AS f1_of
FROM (
    SELECT b.cell, c.class, sum(int32_of(b.digits, c.class))::DOUBLE AS tp,
           sum(int32_of(b.digits, b.classes + c.class))::DOUBLE AS fp,
           sum(int32_of(b.digits, 2 * b.classes + c.class))::DOUBLE AS fn
    FROM base AS b CROSS JOIN LATERAL (SELECT unnest(range(b.classes)) AS class) AS c
    GROUP BY ALL
)

-- statement: areas
-- ROC-AUC of each class of a cell; for pooled phases the mean over phases, weighted by their positions.
SELECT m.cell, a.step AS class, regexp_extract(a.name, '_auc_(.*)$', 1) AS scores,
       sum(exact(a.value) * s.n) / sum(s.n) AS area
FROM members AS m
JOIN metric_point AS a ON a.run_id = m.run_id AND a.unit = m.unit AND starts_with(a.name, m.split || '_auc_')
JOIN (SELECT cell, run_id, unit, whole(sum(n)) AS n FROM base GROUP BY ALL) AS s
    ON s.cell = m.cell AND s.run_id = m.run_id AND s.unit = m.unit
GROUP BY ALL

-- statement: controls
-- The cells of the random-init controls of each trained model's cell: same label, tokens, hook point and settings.
SELECT f.cell, t.cell AS twin_cell, t.checkpoint_id AS twin_id,
       dense_rank() OVER (PARTITION BY f.cell ORDER BY t.cell) AS draw
FROM facts AS f
JOIN facts AS t ON t.untrained AND NOT f.untrained AND t.family_id = f.family_id AND t.label = f.label
    AND t.positions = f.positions AND t.hook_point = f.hook_point AND t.split = f.split
    AND t.family_settings IS NOT DISTINCT FROM f.family_settings

-- statement: table
WITH summed AS (
    SELECT cell, count(DISTINCT item) AS n_games, whole(sum(n)) AS n FROM base GROUP BY cell
),
averaged AS (
    SELECT cell, 100 * sum(exact(precision_of) * support::BIGINT) / sum(support) AS precision,
           100 * sum(exact(f1_of) * support::BIGINT) / sum(support) AS f1,
           100 * avg(exact(precision_of)) FILTER (tp + fp + fn > 0) AS macro_precision,
           100 * avg(exact(recall_of)) FILTER (tp + fp + fn > 0) AS macro_recall,
           100 * avg(exact(f1_of)) FILTER (tp + fp + fn > 0) AS macro_f1
    FROM by_class GROUP BY cell
),
ranked AS (
    SELECT a.cell,
           sum(exact(a.area) * c.support::BIGINT) FILTER (scores = 'softmax')
               / sum(c.support) FILTER (scores = 'softmax') AS auc,
           sum(exact(a.area) * c.support::BIGINT) FILTER (scores = 'logits')
               / sum(c.support) FILTER (scores = 'logits') AS auc_logits,
           avg(exact(a.area)) FILTER (scores = 'softmax') AS macro_auc,
           avg(exact(a.area)) FILTER (scores = 'logits') AS macro_auc_logits,
           any_value(a.area) FILTER (scores = 'softmax_flat') AS flat_auc,
           any_value(a.area) FILTER (scores = 'logits_flat') AS flat_auc_logits
    FROM areas AS a LEFT JOIN by_class AS c ON c.cell = a.cell AND c.class = a.class
    GROUP BY a.cell
)
SELECT f.cell, f.checkpoint, f.twin_of, f.label, f.source, f.positions, f.phase, f.residual_index, f.hook_point, f.layer, f.split,
       s.n_games, s.n, a.precision, a.f1, a.macro_precision, a.macro_recall, a.macro_f1, r.auc, r.auc_logits,
       r.macro_auc, r.macro_auc_logits, r.flat_auc, r.flat_auc_logits,
       (SELECT count(DISTINCT twin_id) FROM controls AS c WHERE c.cell = f.cell) AS twins,
       f.train_positions, f.epochs, f.runs, f.done, f.planned, f.checkpoint_id, f.run_id
FROM facts AS f
JOIN summed AS s ON s.cell = f.cell
JOIN averaged AS a ON a.cell = f.cell
LEFT JOIN ranked AS r ON r.cell = f.cell
ORDER BY f.cell

-- statement: clusters
-- A cluster is one game, with the answers of each random-init control.
WITH played AS (
    SELECT cell, item, whole(sum(correct)) AS correct, whole(sum(n)) AS n, whole(sum(majority)) AS majority,
           sum(n) FILTER (majority IS NOT NULL)::BIGINT AS majority_n, whole(sum(exact)) AS exact,
           sum(positions) FILTER (exact IS NOT NULL)::BIGINT AS positions
    FROM base
    GROUP BY ALL
),
listed AS (
    SELECT p.cell, p.item, list(t.correct ORDER BY c.draw) AS base_correct, list(t.n ORDER BY c.draw) AS base_n
    FROM played AS p
    JOIN controls AS c ON c.cell = p.cell
    LEFT JOIN played AS t ON t.cell = c.twin_cell AND t.item = p.item
    GROUP BY ALL
)
SELECT p.cell, p.correct, p.n, p.majority, p.majority_n, p.exact, p.positions, l.base_correct, l.base_n,
       count(*) AS clusters
FROM played AS p LEFT JOIN listed AS l ON l.cell = p.cell AND l.item = p.item
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, item AS game, layer, n, correct, majority, exact, positions,
       label, run_id
FROM base
ORDER BY run_place(run_id), unit, split, item
