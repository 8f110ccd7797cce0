-- title: probe metrics by class
-- topic: probes
-- question: How large are precision, recall, F1 and AUC of each class?
-- aliases: davis metrics by class, precision, recall, auc, roc, class metrics
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, section 4.4 (each class of Table 5)
-- kinds: probe
-- made by: chessreg run probe --cache CACHE --test-cache TEST --phase white-origin
-- default: checkpoint, twin_of, label, residual_index, split, name; f1, auc; support
-- columns:
--   checkpoint: the probed model
--   twin_of: the model whose random-init control this is
--   label: the label that the probe predicts; piece is the paper's joint label of color and type
--   positions: tokens at which the probe reads; pooled: all phases of one fit
--   phase [hidden]: number of the phase
--   residual_index: 0 the embeddings, L the output of the L-th block; none: after the final LayerNorm
--   hook_point: hook point of the activations
--   split: validation (held out of fitting) or test
--   class [hidden]: number of the class
--   name: meaning of the class
--   support [predictions]: number of squares with this class
--   true_positives [predictions]: predicted and true
--   false_positives [predictions]: predicted, but not true
--   false_negatives [predictions]: true, but not predicted
--   precision [%]: share of the predicted that are true
--   recall [%]: share of the true that are predicted
--   f1 [%]: harmonic mean of the two
--   auc: for probes of one phase the ROC-AUC of softmax against all other classes
--   auc_logits: the same for raw logits
--   runs: the probe runs
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the first of the runs

-- statements of: probe_metrics_by_layer.sql to facts

-- statement: games_scored
-- One row per game and probe.
SELECT m.cell AS probes, s.run_id, s.unit, s.attempt_id, s.split, s.item, s.layer, s.n, s.correct, m.run,
       m.checkpoint_id, m.checkpoint, m.label, octet_length(t.counts) // 12 AS classes, hex(t.counts) AS digits
FROM probe_score AS s
JOIN score AS t ON t.run_id = s.run_id AND t.unit = s.unit AND t.split = s.split AND t.item = s.item
JOIN members AS m ON m.run_id = s.run_id AND m.unit = s.unit AND m.split = s.split
WHERE s.item >= 0 AND t.counts IS NOT NULL

-- statement: base
-- One row per game, probe and class.
SELECT 1000 * g.probes + c.class AS cell, g.* EXCLUDE (classes, digits), c.class,
       int32_of(g.digits, c.class) AS true_positives,
       int32_of(g.digits, g.classes + c.class) AS false_positives,
       int32_of(g.digits, 2 * g.classes + c.class) AS false_negatives
FROM games_scored AS g CROSS JOIN LATERAL (SELECT unnest(range(g.classes)) AS class) AS c

-- statement: areas
-- ROC-AUC of each class of a cell; for pooled phases the mean over phases, weighted by their positions.
SELECT m.cell, a.step AS class, regexp_extract(a.name, '_auc_(.*)$', 1) AS scores,
       sum(exact(a.value) * s.n) / sum(s.n) AS area
FROM members AS m
JOIN metric_point AS a ON a.run_id = m.run_id AND a.unit = m.unit AND starts_with(a.name, m.split || '_auc_')
JOIN (SELECT probes, run_id, unit, whole(sum(n)) AS n FROM games_scored GROUP BY ALL) AS s
    ON s.probes = m.cell AND s.run_id = m.run_id AND s.unit = m.unit
GROUP BY ALL

-- statement: table
WITH counted AS (
    SELECT cell, probes, class, sum(true_positives)::DOUBLE AS tp, sum(false_positives)::DOUBLE AS fp,
           sum(false_negatives)::DOUBLE AS fn
    FROM base
    GROUP BY ALL
)
SELECT c.cell, f.checkpoint, f.twin_of, f.label, f.positions, f.phase, f.residual_index, f.hook_point, f.split, c.class,
       class_text(f.label, f.positions, c.class) AS name, whole(tp + fn) AS support, whole(tp) AS true_positives,
       whole(fp) AS false_positives, whole(fn) AS false_negatives,
       CASE WHEN tp + fp > 0 THEN 100 * tp / (tp + fp) END AS precision,
       CASE WHEN tp + fn > 0 THEN 100 * tp / (tp + fn) END AS recall,
       CASE WHEN tp + fp + fn > 0 THEN 200 * tp / (2 * tp + fp + fn) END AS f1,
       s.area AS auc, l.area AS auc_logits, f.runs, f.checkpoint_id, f.run_id
FROM counted AS c
JOIN facts AS f ON f.cell = c.probes
LEFT JOIN areas AS s ON s.cell = c.probes AND s.class = c.class AND s.scores = 'softmax'
LEFT JOIN areas AS l ON l.cell = c.probes AND l.class = c.class AND l.scores = 'logits'
ORDER BY c.cell

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, item AS game, layer, class, true_positives, false_positives,
       false_negatives, label, run_id
FROM base
ORDER BY run_place(run_id), unit, split, item, class
