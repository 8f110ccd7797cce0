-- title: probe accuracy by source
-- topic: probes
-- question: Do SAE latents or token embeddings predict the label as well as residuals?
-- aliases: probes of latents beside linear probes, davis table 4 beside table 5, latents or residuals, sae probes,
--       embedding baseline, embedding control
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, section 4.4: Table 4 compared with Table 5
-- kinds: probe
-- needs: r.spec ->> 'source' <> 'residual'
-- made by: chessreg run probe --cache CACHE --test-cache TEST --phase white-origin --source sae-latents --sae SAE
-- default: checkpoint, label, source, hook_point, split; accuracy, linear_minus; n_games
-- columns:
--   checkpoint: the probed model
--   label: the label that the probe predicts; piece is the paper's joint label of color and type
--   source: features of the probe: an SAE's latents, or a difference of means of latents or of residuals
--   positions: tokens at which the probe reads; pooled: all phases of one fit
--   phase [hidden]: number of the phase
--   hook_point: hook point of the activations
--   layer [hidden]: 0-based
--   split: validation (held out of fitting) or test
--   n_games [games]: games scored
--   n [predictions]: squares of positions scored
--   accuracy [%]: right predictions; games are resampled
--   linear [%]: right predictions of the first probe of residuals with the same caches, tokens, alignment, hook point
--       and (for validation) held-out games
--   linear_minus [%]: linear minus this, same games
--   runs: the probe runs
--   linear_runs: the runs of the probes of residuals
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the first of the runs
-- statistics:
--   accuracy = percent(correct, n)
--   linear = percent(linear_correct, linear_n)
--   linear_minus = percent_difference(linear_correct, linear_n, correct, n)
-- plot: probe accuracy by source
--   form: lines
--   x: layer
--   y: linear_minus
--   series: checkpoint, label, source, split
--   panels: positions

-- statement: cells
-- `settings`: settings shared by fits that differ in their phase alone. `scored`: settings, other than caches and
-- tokens, that decide which positions are scored and by which labels.
SELECT p.run_id, p.unit, s.split, p.label, p.positions, r.phase, r.cache, coalesce(r.test_cache, '') AS test_cache,
       settings_text(o.spec, ['phase', 'layers', 'min_positions']) AS settings,
       [r.alignment, r.skip_sites::VARCHAR, r.max_sites::VARCHAR, r.last_sites::VARCHAR, r.skill::VARCHAR,
        CASE s.split WHEN 'validation' THEN concat_ws(' ', r.split, r.validation, r.seed) END]::VARCHAR AS scored,
       p.hook_point, p.layer, coalesce(r.source, 'residual') AS source, p.checkpoint_id, c.checkpoint, c.place, o.run,
       o.created_at
FROM probe AS p
JOIN scoped AS o ON o.run_id = p.run_id
JOIN probe_run AS r ON r.run_id = p.run_id
JOIN (SELECT DISTINCT run_id, unit, split FROM probe_score WHERE item >= 0) AS s
    ON s.run_id = p.run_id AND s.unit = p.unit
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id

-- statement: linear
-- The first matching probe of residuals.
SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY checkpoint_id, label, cache, test_cache, positions, scored, hook_point,
                                              split
                                 ORDER BY created_at, run_id) AS place_of_run
    FROM cells WHERE source = 'residual'
) WHERE place_of_run = 1

-- statement: pairs
SELECT a.*, b.run_id AS linear_run_id, b.unit AS linear_unit, b.run AS linear_run
FROM cells AS a
JOIN linear AS b ON b.checkpoint_id = a.checkpoint_id AND b.label = a.label AND b.cache = a.cache
    AND b.test_cache = a.test_cache AND b.positions = a.positions AND b.scored = a.scored
    AND b.hook_point = a.hook_point AND b.split = a.split
WHERE a.source <> 'residual'

-- statement: members
-- The probes of each cell: a probe alone, and all phases of a place.
SELECT *, dense_rank() OVER (ORDER BY place, label, source, layer, hook_point, settings, split, pooled,
                                      CASE WHEN NOT pooled THEN phase END NULLS FIRST,
                                      CASE WHEN NOT pooled THEN run_id END) AS cell
FROM (
    SELECT *, false AS pooled FROM pairs
    UNION ALL
    SELECT *, true AS pooled FROM pairs AS p
    WHERE (SELECT count(DISTINCT q.phase) FROM pairs AS q
           WHERE q.checkpoint_id = p.checkpoint_id AND q.label = p.label AND q.settings = p.settings
             AND q.hook_point = p.hook_point AND q.split = p.split) > 1
)

-- statement: base
SELECT m.cell, s.run_id, s.unit, s.attempt_id, s.split, s.item, s.n, s.correct, l.n AS linear_n,
       l.correct AS linear_correct, m.run, m.checkpoint_id, m.checkpoint, m.label, m.hook_point, m.layer
FROM members AS m
JOIN probe_score AS s ON s.run_id = m.run_id AND s.unit = m.unit AND s.split = m.split AND s.item >= 0
JOIN probe_score AS l ON l.run_id = m.linear_run_id AND l.unit = m.linear_unit AND l.split = m.split
    AND l.item = s.item

-- statement: table
SELECT m.cell, any_value(m.checkpoint) AS checkpoint, any_value(m.label) AS label, any_value(m.source) AS source,
       CASE WHEN bool_or(m.pooled) THEN 'pooled' ELSE any_value(m.positions) END AS positions,
       CASE WHEN NOT bool_or(m.pooled) THEN any_value(m.phase) END AS phase, any_value(m.hook_point) AS hook_point,
       any_value(m.layer) AS layer, any_value(m.split) AS split, any_value(s.n_games) AS n_games, any_value(s.n) AS n,
       string_agg(DISTINCT m.run, ', ' ORDER BY m.run) AS runs,
       string_agg(DISTINCT m.linear_run, ', ' ORDER BY m.linear_run) AS linear_runs,
       any_value(m.checkpoint_id) AS checkpoint_id, arg_min(m.run_id, (m.created_at, m.run_id)) AS run_id
FROM members AS m
JOIN (SELECT cell, count(DISTINCT item) AS n_games, whole(sum(n)) AS n FROM base GROUP BY cell) AS s ON s.cell = m.cell
GROUP BY m.cell
ORDER BY m.cell

-- statement: clusters
-- A cluster is one game.
WITH played AS (
    SELECT cell, item, whole(sum(correct)) AS correct, whole(sum(n)) AS n, whole(sum(linear_correct)) AS linear_correct,
           whole(sum(linear_n)) AS linear_n
    FROM base GROUP BY cell, item
)
SELECT cell, correct, n, linear_correct, linear_n, count(*) AS clusters
FROM played GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, item AS game, layer, n, correct, linear_n, linear_correct, label,
       run_id
FROM base
ORDER BY run_place(run_id), unit, split, item
