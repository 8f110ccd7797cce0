-- title: best probe layers
-- topic: probes
-- question: Which layer is best, and how much better than a random-init control?
-- aliases: probe accuracy of the best layer, which layer knows the board, karvonen table 1, best layer, random-init control, untrained control,
--       probe control, random init baseline
-- paper: Karvonen 2024, Table 1
-- kinds: probe
-- made by: chessreg run probe
-- default: checkpoint, weights, label, positions, selected_on, layer; accuracy, minus_untrained
-- columns:
--   checkpoint: the model
--   weights: trained; hardly trained: its import found that it does not predict games; or untrained: its twins with
--       random weights
--   probe: the experiment kind that fitted it: probe is linear
--   label: the label that the probe predicts from the residual stream
--   positions: characters at which the probe reads the residual stream
--   strata: for skill: classes of games were made within each source, over all, or with balanced sources
--   selected_on: games that chose the layer: validation, or test (as in the paper, biased upwards)
--   layer: the chosen layer, 0-based
--   layers_tried [layers]: number of layers that were compared
--   n_seeds [runs]: number of pooled probe runs, which differ in their seed; `runs` names them, and `chessreg runs show`
--       prints their seed
--   models [models]: number of probed models: 1, or the number of twins
--   epochs: passes over the fitting games
--   n_games [games]: test games, each scored by every run
--   n [predictions]: squares (or positions) scored
--   accuracy [%]: right predictions on the test games; games and seeds are resampled, or twins if there are several
--   majority [%]: accuracy of always predicting the most frequent class of the fitting games
--   minus_majority [%]: accuracy minus majority, same games
--   source [%]: for skill: accuracy of predicting from source and time control alone
--   length [%]: for skill: accuracy of predicting from the length of the game alone
--   untrained [%]: accuracy of the twins, at the layer chosen in the same way
--   untrained_layer: the layer chosen for the twins
--   minus_untrained [%]: accuracy minus that of the twins, same games
--   overlap: whole games among those of all splits that the model was trained on, and that the probe was fitted on
--   overlap_model_games [hidden]: number of these games, the largest of any run; none: unknown
--   overlap_model_openings [hidden]: games whose first 20 plies the model was trained on
--   overlap_model_positions [hidden]: number of different positions that it was trained on
--   overlap_probe_games [hidden]: games that the probe was fitted on
--   overlap_probe_openings [hidden]: games whose first 20 plies it was fitted on
--   overlap_probe_positions [hidden]: number of different positions that it was fitted on
--   fitted_on: dataset and part of the fitting games, and the selection of games and sites; none: unknown
--   tested_on: the same for the test games
--   train_games [games]: games fitted on
--   runs: the probe runs
--   done [units]: completed units
--   planned [units]: units of the runs
--   warning [hidden]: that a difference below 1 % rests on one twin, and on which games the layer was selected
--   checkpoint_id [hidden]: the trained model's id
--   run_id [hidden]: id of the first of the runs
-- statistics:
--   accuracy = percent(correct, n)
--   majority = percent(majority, majority_n)
--   minus_majority = percent_difference(correct, n, majority, majority_n)
--   source = percent(by_source, source_n)
--   length = percent(by_length, length_n)
--   untrained = percent(base_correct, base_n)
--   minus_untrained = percent_difference(correct, n, base_correct, base_n)
-- plot: probe accuracy of the best layer
--   aliases: karvonen table 1 bars
--   form: dots
--   x: checkpoint
--   y: accuracy
--   baseline: majority
--   series: weights
--   panels: label, positions, selected_on

-- statement: cells
-- One row per probe. Runs of one pool differ in seed and replicate alone, untrained twins also in their weights; their
-- fitting and test data are the same.
SELECT p.run_id, p.unit, p.layer, p.label, p.positions, p.train_games, p.epochs::BIGINT AS epochs,
       p.checkpoint_id AS probed_id,
       coalesce(CASE WHEN c.random_init THEN c.parent_id END, p.checkpoint_id) AS checkpoint_id,
       coalesce(parent.checkpoint, c.checkpoint) AS checkpoint, coalesce(parent.place, c.place) AS checkpoint_place,
       CASE WHEN c.random_init THEN 'untrained' ELSE 'trained' END AS weights,
       NOT c.random_init AND c.import_loss >= c.import_entropy AND coalesce(c.import_legal, 0) < 0.5 AS hardly_trained,
       r.kind AS probe,
       concat_ws('; ', settings_text(r.spec, ['seed', 'replicate', 'cache', 'test_cache', 'layers']), u.settings)
           AS settings,
       u.fitted_on, u.tested_on, r.run, r.done, r.planned, r.created_at, k.strata
FROM probe AS p
LEFT JOIN skill_classes AS k ON k.run_id = p.run_id
JOIN scoped AS r ON r.run_id = p.run_id AND (r.kind = 'probe' OR ends_with(r.kind, '-probe'))
LEFT JOIN probe_caches AS u ON u.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id
LEFT JOIN checkpoints AS parent ON c.random_init AND parent.checkpoint_id = c.parent_id

-- statement: pools
SELECT *, dense_rank() OVER (ORDER BY label, positions, probe, checkpoint_place, checkpoint_id, settings, train_games,
                                      epochs) AS pool
FROM cells

-- statement: chosen
-- For each pool, kind of weights and `selected_on`: the layer with the highest share of right answers.
SELECT pool, weights, selected_on, layer, layers_tried,
       4 * pool + 2 * (weights = 'untrained')::BIGINT + (selected_on = 'test')::BIGINT AS cell
FROM (
    SELECT *, row_number() OVER (PARTITION BY pool, weights, selected_on ORDER BY right_share DESC, layer) AS place,
           count(*) OVER (PARTITION BY pool, weights, selected_on) AS layers_tried
    FROM (
        SELECT k.pool, k.weights, s.split AS selected_on, k.layer,
               sum(s.correct)::DOUBLE / sum(s.n)::DOUBLE AS right_share
        FROM pools AS k
        JOIN score AS s ON s.run_id = k.run_id AND s.unit = k.unit
        WHERE s.item >= 0 AND s.split IN ('validation', 'test')
        GROUP BY ALL
    )
)
WHERE place = 1

-- statement: drawn
-- The numbered draws that a cell's games are crossed with: its twins if there are several, else its runs (seeds).
SELECT DISTINCT h.cell, k.run_id, dense_rank() OVER (
    PARTITION BY h.cell ORDER BY CASE WHEN m.models > 1 THEN k.probed_id ELSE k.run_id END) AS draw
FROM chosen AS h
JOIN pools AS k ON k.pool = h.pool AND k.weights = h.weights AND k.layer = h.layer
JOIN (SELECT pool, weights, count(DISTINCT probed_id) AS models FROM pools GROUP BY ALL) AS m
    ON m.pool = h.pool AND m.weights = h.weights

-- statement: base
SELECT h.cell, h.pool, h.weights, h.selected_on, s.run_id, s.unit, s.attempt_id, s.split, s.item, s.layer, s.n,
       s.correct,
       coalesce(s.majority,
                s.n * (s.majority_class
                       = s.game_class)::BIGINT) AS majority,
       s.n * (s.source_class
              = s.game_class)::BIGINT AS by_source,
       s.n * (s.length_class
              = s.game_class)::BIGINT AS by_length, k.run, k.checkpoint_id, k.checkpoint,
       k.label
FROM chosen AS h
JOIN pools AS k ON k.pool = h.pool AND k.weights = h.weights AND k.layer = h.layer
JOIN probe_score AS s ON s.run_id = k.run_id AND s.unit = k.unit AND s.split = 'test' AND s.item >= 0

-- statement: table
WITH scored AS (
    SELECT cell, count(DISTINCT item) AS n_games, whole(sum(n)) AS n,
           100.0 * sum(correct)::DOUBLE / nullif(sum(n), 0)::DOUBLE AS accuracy
    FROM base GROUP BY cell
),
pooled AS (
    SELECT pool, weights, any_value(checkpoint) AS checkpoint, bool_or(hardly_trained) AS hardly_trained,
           any_value(label) AS label, any_value(probe) AS probe,
           any_value(positions) AS positions, any_value(strata) AS strata,
           any_value(fitted_on) AS fitted_on, any_value(tested_on) AS tested_on,
           count(DISTINCT run_id) AS n_seeds, count(DISTINCT probed_id) AS models,
           any_value(train_games) AS train_games, any_value(epochs) AS epochs,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs, any_value(checkpoint_id) AS checkpoint_id,
           arg_min(run_id, (created_at, run_id)) AS run_id
    FROM pools
    GROUP BY ALL
),
overlapping AS (
    SELECT p.pool, p.weights, string_agg(DISTINCT o.overlap, '; ' ORDER BY o.overlap) AS overlap,
           max(o.model_games) AS overlap_model_games, max(o.model_openings) AS overlap_model_openings,
           max(o.model_positions) AS overlap_model_positions, max(o.probe_games) AS overlap_probe_games,
           max(o.probe_openings) AS overlap_probe_openings, max(o.probe_positions) AS overlap_probe_positions
    FROM (SELECT DISTINCT pool, weights, run_id FROM pools) AS p LEFT JOIN shared_games AS o USING (run_id) GROUP BY ALL
),
progress AS (
    SELECT pool, weights, whole(sum(done)) AS done, whole(sum(planned)) AS planned
    FROM (SELECT DISTINCT pool, weights, run_id, done, planned FROM pools) GROUP BY ALL
)
SELECT h.cell, p.checkpoint, CASE WHEN p.hardly_trained THEN 'hardly trained' ELSE h.weights END AS weights, p.probe, p.label, p.positions, p.strata, h.selected_on, h.layer, h.layers_tried, p.n_seeds, p.models,
       s.n_games, s.n, p.epochs, u.layer AS untrained_layer, o.* EXCLUDE (pool, weights),
       p.fitted_on, p.tested_on, p.train_games, p.runs, g.done, g.planned,
       nullif(concat_ws('; ',
           CASE WHEN twin.models = 1 AND abs(s.accuracy - us.accuracy) < 1
                THEN 'one twin: the interval resamples games, not random initializations' END,
           CASE WHEN h.selected_on = 'test'
                THEN 'selected on test: this layer has the highest accuracy on the test games, so the accuracy is biased upwards'
                ELSE 'selected on validation: this layer has the highest accuracy on the validation games, and the accuracy shown is that on the test games' END), '') AS warning,
       p.checkpoint_id, p.run_id
FROM chosen AS h
JOIN overlapping AS o ON o.pool = h.pool AND o.weights = h.weights
JOIN scored AS s ON s.cell = h.cell
JOIN pooled AS p ON p.pool = h.pool AND p.weights = h.weights
JOIN progress AS g ON g.pool = h.pool AND g.weights = h.weights
LEFT JOIN chosen AS u
    ON u.pool = h.pool AND u.selected_on = h.selected_on AND u.weights = 'untrained' AND h.weights = 'trained'
LEFT JOIN scored AS us ON us.cell = u.cell
LEFT JOIN pooled AS twin ON twin.pool = u.pool AND twin.weights = u.weights
ORDER BY h.cell

-- statement: clusters
-- A cluster is one game, with the answers of each run (for a twin: of all its runs), and those of the untrained twins.
WITH answered AS (
    SELECT b.cell, d.draw, b.item, whole(sum(correct)) AS correct, whole(sum(n)) AS n
    FROM base AS b JOIN drawn AS d ON d.cell = b.cell AND d.run_id = b.run_id
    GROUP BY ALL
),
played AS (
    SELECT cell, pool, weights, selected_on, item,
           whole(sum(majority)) AS majority, sum(n) FILTER (majority IS NOT NULL)::BIGINT AS majority_n,
           whole(sum(by_source)) AS by_source, sum(n) FILTER (by_source IS NOT NULL)::BIGINT AS source_n,
           whole(sum(by_length)) AS by_length, sum(n) FILTER (by_length IS NOT NULL)::BIGINT AS length_n
    FROM base
    GROUP BY ALL
),
listed AS (
    SELECT p.cell, p.item, list(a.correct ORDER BY d.draw) AS correct, list(a.n ORDER BY d.draw) AS n
    FROM played AS p
    JOIN (SELECT DISTINCT cell, draw FROM drawn) AS d ON d.cell = p.cell
    LEFT JOIN answered AS a ON a.cell = p.cell AND a.item = p.item AND a.draw = d.draw
    GROUP BY ALL
)
SELECT p.cell, l.correct, l.n, p.majority, p.majority_n, p.by_source, p.source_n, p.by_length, p.length_n,
       t.correct AS base_correct, t.n AS base_n, count(*) AS clusters
FROM played AS p
JOIN listed AS l ON l.cell = p.cell AND l.item = p.item
LEFT JOIN played AS u ON u.pool = p.pool AND u.selected_on = p.selected_on AND u.item = p.item
    AND u.weights = 'untrained' AND p.weights = 'trained'
LEFT JOIN listed AS t ON t.cell = u.cell AND t.item = u.item
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, item AS game, layer, n, correct, majority, label, run_id
FROM base
ORDER BY run_place(run_id), unit, split, item
