-- title: best board edit
-- topic: board edits
-- question: Which board edit won on half of the states, and its effect on the others?
-- aliases: board edit sweep, karvonen table 6, karvonen appendix d, best edit, tuned edit
-- paper: Karvonen 2024, section 4.1, Table 6 and Appendix D
-- kinds: edit
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
--       AND (r.spec ->> 'layer_sets' <> '[]' OR r.spec ->> 'scales' <> '[]')
-- made by: chessreg run edit --layer-sets … --scales …
-- default: checkpoint, choice, intervention; modified, original, delta_modified; states
-- columns:
--   checkpoint: the model
--   run: the sweep
--   choice: best edit (the best on half of the games), or best of scales per state (for every state the best count
--       over all edits: an upper bound, chosen on the games that it is reported on)
--   intervention: the edit
--   layers [hidden]: its layers, 0-based; for best of scales per state the layers that all edits of the run share
--   layers_label: name of these layers in a paper
--   scale [hidden]: value of --scale, which --scale-rule interprets
--   tried [edits]: number of compared edits
--   selected_on: games on which the edits were compared, by the share of sampled texts legal without the piece
--   chosen_modified [%]: that share on these games (biased by the choice)
--   reported_on: games of the following columns
--   states [states]: states of those games
--   games [games]: number of those games
--   original [%]: sampled texts that are legal on the original board, with its interval; games are resampled
--   modified [%]: legal on the board without the piece
--   exact_modified [%]: mean exact probability of a legal move there, canonical spelling
--   greedy_modified [%]: greedy texts that are legal there
--   delta_modified [%]: modified minus clean, same games
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the best edit
--   run_id [hidden]: id of the run
-- statistics:
--   chosen_modified = percent(chosen_modified, chosen_samples)
--   original = percent(original, samples)
--   modified = percent(modified, samples)
--   exact_modified = percent(mass_modified, states)
--   greedy_modified = percent(greedy_modified, greedy)
--   delta_modified = percent_difference(modified, samples, base_modified, base_samples)

-- statement: skipped
SELECT run, reason, states, hint FROM skipped_edits
WHERE kind = 'edit' AND run_id IN (SELECT run_id FROM scoped)
ORDER BY states DESC, run, reason, hint

-- statement: edits
-- Every edit of the runs in scope that try more than one.
SELECT run_id, condition, intervention_id, count(*) OVER (PARTITION BY run_id) AS tried
FROM (SELECT DISTINCT run_id, condition, intervention_id FROM trial
      WHERE regexp_matches(condition, '^edit-[0-9]+$') AND run_id IN (SELECT run_id FROM scoped WHERE kind = 'edit'))

-- statement: counted
-- One row per state and condition: counts of sampled texts, and which half of the games the state is in.
SELECT t.run_id, t.unit, t.condition, any_value(t.item) AS item, any_value(t.attempt_id) AS attempt_id,
       max(t.half) AS half,
       count(*) FILTER (sample >= 0) AS samples,
       count(*) FILTER (sample >= 0 AND legal_original) AS original,
       count(*) FILTER (sample >= 0 AND legal_modified) AS modified,
       count(*) FILTER (sample < 0 AND legal_modified) AS greedy_modified,
       max(mass_modified) AS mass_modified
FROM edits_trial AS t
WHERE (t.condition = 'clean' OR regexp_matches(t.condition, '^edit-[0-9]+$'))
    AND t.run_id IN (SELECT run_id FROM edits WHERE tried > 1)
GROUP BY t.run_id, t.unit, t.condition

-- statement: winners
SELECT run_id, condition FROM (
    SELECT run_id, condition,
           row_number() OVER (PARTITION BY run_id
                              ORDER BY sum(modified) * 1.0 / sum(samples) DESC, sum(exact(mass_modified)) DESC,
                                       len(condition), condition) AS place
    FROM counted
    WHERE half = 'choose' AND condition <> 'clean'
    GROUP BY run_id, condition
)
WHERE place = 1

-- statement: choices
-- The reported rows by state: the winner on the half that did not choose it, and the best of all edits on all states.
SELECT c.run_id, 'best edit' AS choice, c.unit, c.item, c.attempt_id, w.condition, c.half, c.samples, c.original,
       c.modified, c.greedy_modified, c.mass_modified
FROM counted AS c JOIN winners AS w ON w.run_id = c.run_id AND w.condition = c.condition
UNION ALL
SELECT run_id, 'best of scales per state', unit, any_value(item), any_value(attempt_id), NULL, 'report', max(samples),
       max(original), max(modified), max(greedy_modified), max(mass_modified)
FROM counted
WHERE condition <> 'clean'
GROUP BY run_id, unit

-- statement: cells
SELECT a.run_id, a.choice, a.condition, k.checkpoint_id, p.checkpoint, r.run, r.done, r.planned,
       dense_rank() OVER (ORDER BY p.place, r.created_at, a.run_id, a.choice) AS cell
FROM (SELECT DISTINCT run_id, choice, condition FROM choices) AS a
JOIN scoped AS r ON r.run_id = a.run_id
LEFT JOIN (SELECT run_id, any_value(i.checkpoint_id) AS checkpoint_id
           FROM edits AS e JOIN interventions AS i USING (intervention_id) GROUP BY run_id) AS k ON k.run_id = a.run_id
LEFT JOIN checkpoints AS p ON p.checkpoint_id = k.checkpoint_id

-- statement: base
SELECT k.cell, k.run, c.* EXCLUDE (half) FROM choices AS c
JOIN cells AS k ON k.run_id = c.run_id AND k.choice = c.choice
WHERE c.half = 'report'

-- statement: table
SELECT k.cell, any_value(k.checkpoint) AS checkpoint, any_value(k.run) AS run, any_value(k.choice) AS choice,
       any_value(i.intervention) AS intervention, TRY_CAST(coalesce(any_value(i.layers), any_value(s.layers)) AS BIGINT[]) AS layers,
       any_value(i.layers_label) AS layers_label, any_value(i.scale) AS scale,
       any_value(e.tried) AS tried,
       CASE WHEN any_value(k.condition) IS NULL THEN 'the same states' ELSE 'half of the games' END AS selected_on,
       CASE WHEN any_value(k.condition) IS NULL THEN 'all games' ELSE 'the other half' END AS reported_on,
       count(DISTINCT b.unit) AS states, count(DISTINCT b.item) AS games, any_value(k.done) AS done,
       any_value(k.planned) AS planned, any_value(k.checkpoint_id) AS checkpoint_id,
       any_value(i.intervention_id) AS intervention_id, any_value(k.run_id) AS run_id
FROM cells AS k
LEFT JOIN base AS b ON b.cell = k.cell
LEFT JOIN edits AS e ON e.run_id = k.run_id AND e.condition = coalesce(k.condition, e.condition)
LEFT JOIN interventions AS i ON i.intervention_id = e.intervention_id AND k.condition IS NOT NULL
LEFT JOIN (SELECT run_id, any_value(layers) AS layers FROM edits JOIN interventions USING (intervention_id)
           GROUP BY run_id HAVING count(DISTINCT layers) = 1) AS s ON s.run_id = k.run_id
GROUP BY k.cell
ORDER BY k.cell

-- statement: clusters
-- A cluster is one game; the same row has the counts of the clean model in the same states.
WITH summed AS (
    SELECT k.cell, c.half, c.item, whole(sum(c.samples)) AS samples, whole(sum(c.original)) AS original,
           whole(sum(c.modified)) AS modified, whole(sum(c.greedy_modified)) AS greedy_modified, count(*) AS states,
           sum(exact(c.mass_modified))::DOUBLE AS mass_modified, whole(sum(b.modified)) AS base_modified,
           whole(sum(b.samples)) AS base_samples
    FROM choices AS c
    JOIN cells AS k ON k.run_id = c.run_id AND k.choice = c.choice
    JOIN counted AS b ON b.run_id = c.run_id AND b.unit = c.unit AND b.condition = 'clean'
    GROUP BY k.cell, c.half, c.item
)
SELECT cell, CASE WHEN half = 'choose' THEN modified END AS chosen_modified,
       CASE WHEN half = 'choose' THEN samples END AS chosen_samples,
       CASE WHEN half = 'report' THEN original END AS original, CASE WHEN half = 'report' THEN modified END AS modified,
       CASE WHEN half = 'report' THEN samples END AS samples,
       CASE WHEN half = 'report' THEN mass_modified END AS mass_modified,
       CASE WHEN half = 'report' THEN states END AS states,
       CASE WHEN half = 'report' THEN greedy_modified END AS greedy_modified,
       CASE WHEN half = 'report' THEN states END AS greedy,
       CASE WHEN half = 'report' THEN base_modified END AS base_modified,
       CASE WHEN half = 'report' THEN base_samples END AS base_samples, count(*) AS clusters
FROM summed
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT b.run || ':' || b.unit AS board, b.run, b.unit, b.choice, b.item AS game, coalesce(b.condition, 'all') AS condition,
       b.samples, b.original, b.modified, b.greedy_modified, b.mass_modified, b.run_id
FROM base AS b
ORDER BY run_place(b.run_id), b.unit, b.choice
