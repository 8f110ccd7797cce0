-- title: probe f1 by class
-- topic: probes
-- question: How large is the F1 score of each piece or class?
-- aliases: f1, f1 by piece, karvonen table 9, confusion matrix, per class accuracy, hardest pieces to read, worst read
--       piece, f1 of the queen, white or black pieces, pawn knight bishop rook queen king
-- paper: Karvonen 2024, Table 9 and Appendix F
-- kinds: probe
-- made by: chessreg run probe
-- default: checkpoint, twin_of, label, positions, layer, name; f1; n_games
-- columns:
--   checkpoint: the probed model
--   twin_of: the model whose untrained twin this is
--   label: the label that the probe predicts from the residual stream
--   positions: characters at which the probe reads the residual stream
--   layer: 0-based; the layer that the run's validation games choose
--   class [hidden]: number of the class
--   name: meaning of the class; my pieces are those of the side to move
--   n_games [games]: test games scored
--   true_positives [predictions]: predicted and true
--   false_positives [predictions]: predicted, but not true
--   false_negatives [predictions]: true, but not predicted
--   f1: from the counts of all games, with its interval; games are resampled two by two
--   f1_author: the F1 of the paper's code: the mean of the F1 of every two consecutive games
--   run: the probe run
--   done [units]: completed units
--   planned [units]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   f1 = score(twice_true, total)
--   f1_author = score(f1_of_pair, pairs)
-- plot: probe f1 by class
--   aliases: karvonen table 9 bars
--   form: bars
--   x: name
--   y: f1
--   series: checkpoint, layer, run
--   panels: label, positions

-- statement: cells
-- One row per probe run, with the layer that its validation games choose: nothing is pooled over settings or seeds.
SELECT p.run_id, p.unit, p.layer, p.label, p.positions, p.checkpoint_id, c.checkpoint,
       CASE WHEN c.random_init THEN coalesce(parent.checkpoint, right(replace(c.parent_id::VARCHAR, '-', ''), 6)) END
           AS twin_of,
       coalesce(parent.place, c.place) AS family, c.place AS checkpoint_place, r.run, r.done, r.planned, r.created_at,
       concat_ws('; ', settings_text(r.spec, ['seed', 'replicate', 'cache', 'test_cache', 'layers']), u.settings)
           AS settings
FROM (
    SELECT p.*, row_number() OVER (PARTITION BY p.run_id ORDER BY s.right_share DESC NULLS LAST, p.layer, p.unit) AS place
    FROM probe AS p
    LEFT JOIN (SELECT run_id, unit, sum(correct)::DOUBLE / sum(n)::DOUBLE AS right_share
               FROM score WHERE split = 'validation' AND item >= 0 GROUP BY ALL) AS s
        ON s.run_id = p.run_id AND s.unit = p.unit
) AS p
JOIN scoped AS r ON r.run_id = p.run_id
LEFT JOIN probe_caches AS u ON u.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id
LEFT JOIN checkpoints AS parent ON c.random_init AND parent.checkpoint_id = c.parent_id
WHERE p.place = 1

-- statement: base
-- One row per test game and class. Counts are int32 [3, classes]: true positives, false positives, false negatives.
SELECT 1000 * k.place + c.class AS cell, s.run_id, s.unit, s.attempt_id, s.split, s.item, c.class, k.layer, k.label,
       k.positions, k.run, k.checkpoint_id, k.checkpoint,
       int32_of(s.digits, c.class) AS true_positives,
       int32_of(s.digits, s.classes + c.class) AS false_positives,
       int32_of(s.digits, 2 * s.classes + c.class) AS false_negatives
FROM (SELECT *, hex(counts) AS digits, octet_length(counts) // 12 AS classes
      FROM score WHERE split = 'test' AND item >= 0 AND counts IS NOT NULL) AS s
JOIN (SELECT *, dense_rank() OVER (ORDER BY label, positions, family, twin_of IS NOT NULL, checkpoint_place,
                                   created_at, run_id) AS place FROM cells) AS k
    ON k.run_id = s.run_id AND k.unit = s.unit
CROSS JOIN LATERAL (SELECT unnest(range(s.classes)) AS class) AS c

-- statement: table
WITH counted AS (
    SELECT cell, run_id, class, count(*) AS n_games, whole(sum(true_positives)) AS true_positives,
           whole(sum(false_positives)) AS false_positives, whole(sum(false_negatives)) AS false_negatives
    FROM base
    GROUP BY ALL
)
SELECT b.cell, k.checkpoint, k.twin_of, k.label, k.positions, k.layer, b.class,
       class_text(k.label, k.positions, b.class) AS name, b.n_games, b.true_positives, b.false_positives,
       b.false_negatives, k.run, k.done, k.planned, k.checkpoint_id, k.run_id
FROM counted AS b JOIN cells AS k ON k.run_id = b.run_id
ORDER BY b.cell

-- statement: clusters
-- A cluster is two consecutive games, the author's batch. His F1 has 1e-8 in each denominator.
WITH paired AS (
    SELECT cell, pair, sum(true_positives)::DOUBLE AS tp, sum(false_positives)::DOUBLE AS fp,
           sum(false_negatives)::DOUBLE AS fn
    FROM (SELECT *, (row_number() OVER (PARTITION BY cell ORDER BY item) - 1) // 2 AS pair FROM base)
    GROUP BY cell, pair
),
rated AS (
    SELECT *, tp / (tp + fp + 1e-8) AS precision_of, tp / (tp + fn + 1e-8) AS recall_of FROM paired
)
SELECT cell, 2 * tp AS twice_true, 2 * tp + fp + fn AS total,
       round(2 * precision_of * recall_of / (precision_of + recall_of + 1e-8), 12) AS f1_of_pair, 1 AS pairs,
       count(*) AS clusters
FROM rated
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, item AS game, layer, class, true_positives, false_positives,
       false_negatives, label, run_id
FROM base
ORDER BY run_place(run_id), unit, split, item, class
