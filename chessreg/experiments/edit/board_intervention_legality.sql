-- title: board intervention legality
-- topic: board edits
-- question: Does the model play legal moves on the edited board, compared with controls?
-- aliases: board interventions, edits, karvonen table 2, karvonen table 8, board edit, board edits, board intervention,
--       piece removal, edit legality, piece deletion, remove a piece, erase a piece, intervention success rate,
--       random direction control, shuffled label control, legal moves after the edit
-- paper: Karvonen 2024, Table 2, Table 8 and section 4.2
-- kinds: edit
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
-- made by: chessreg run edit
-- default: checkpoint, condition, layers, scale; modified, original, minus_random; states
-- columns:
--   checkpoint: the model
--   condition: clean (no edit), edit (the piece removed), or a control of the same length: random, or shuffled (the
--       direction of another piece), wrong-layer (the same directions half the model's depth away), sham (length 0),
--       encode-decode (the residual as SAEs reconstruct it)
--   intervention: source, layers (0-based), scale and positions of the edit
--   layer [hidden]: the edited layer, if there is only one
--   layers: all edited layers
--   scale: length of the subtracted direction, or the value of the scale rule
--   scale_rule [hidden]: single_scale, single_target or average_target
--   edits_tried [hidden]: edits in the run: more than one is a sweep
--   states [states]: positions with a piece to remove
--   unique_states [states]: different positions among them
--   games [games]: games of these positions
--   samples [texts]: sampled texts
--   original [%]: sampled texts that are legal on the original board, with its interval; games are resampled
--   modified [%]: legal on the board without the piece
--   exact_original [%]: mean exact probability of a legal move on the original board
--   exact_modified [%]: on the board without the piece
--   spelled_original [%]: the same for every accepted spelling, on the original board
--   spelled_modified [%]: on the board without the piece
--   greedy_original [%]: greedy texts that are legal on the original board
--   greedy_modified [%]: greedy texts that are legal on the board without the piece
--   unique_modified [%]: modified, each different position once
--   delta_original [%]: original minus clean, same games
--   delta_modified [%]: modified minus clean, same games
--   delta_exact [%]: exact_modified minus clean, same games
--   minus_random [%]: modified minus that of the random directions, same games
--   minus_shuffled [%]: modified minus that of the shuffled ones
--   skipped [states]: states without a piece to remove: the clean greedy text is illegal or moves the king
--   overlap: whole games among these that the model was trained on, and that the probe was fitted on
--   overlap_model_games [hidden]: number of these games; none: unknown
--   overlap_model_openings [hidden]: games whose first 20 plies the model was trained on
--   overlap_model_positions [hidden]: number of different positions that it was trained on
--   overlap_probe_games [hidden]: games that the probe was fitted on
--   overlap_probe_openings [hidden]: games whose first 20 plies it was fitted on
--   overlap_probe_positions [hidden]: number of different positions that it was fitted on
--   run: the edit run
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
--   run_id [hidden]: id of the run
-- statistics:
--   original = percent(original, samples)
--   modified = percent(modified, samples)
--   exact_original = percent(mass_original, states)
--   exact_modified = percent(mass_modified, states)
--   spelled_original = percent(spelled_original, spelled)
--   spelled_modified = percent(spelled_modified, spelled)
--   greedy_original = percent(greedy_original, greedy)
--   greedy_modified = percent(greedy_modified, greedy)
--   unique_modified = percent(unique_modified, unique_samples)
--   delta_original = percent_difference(original, samples, base_original, base_samples)
--   delta_modified = percent_difference(modified, samples, base_modified, base_samples)
--   delta_exact = percent_difference(mass_modified, states, base_mass_modified, base_states)
--   minus_random = percent_difference(modified, samples, random_modified, random_samples)
--   minus_shuffled = percent_difference(modified, samples, shuffled_modified, shuffled_samples)
-- plot: board edits
--   aliases: karvonen table 2 bars
--   form: dots
--   x: condition
--   y: modified
--   series: checkpoint, run
--   where: edits_tried = 1
-- plot: board edits by layer
--   aliases: karvonen table 8 bars
--   form: lines
--   x: layer
--   y: modified
--   series: condition, scale, run
--   panels: checkpoint
--   where: layer IS NOT NULL

-- statement: skipped
SELECT run, reason, states, hint FROM skipped_edits
WHERE kind = 'edit' AND run_id IN (SELECT run_id FROM scoped)
ORDER BY states DESC, run, reason, hint

-- statement: conditions
-- One row per run, condition and intervention. Random directions random-0, random-1, … are one condition.
SELECT DISTINCT t.run_id, t.condition, regexp_replace(t.condition, '-[0-9]+$', '') AS kind, t.intervention_id,
       i.checkpoint_id, coalesce(i.intervention, 'none') AS intervention, i.layers, i.scale, i.scale_rule, i.token_mask
FROM (SELECT DISTINCT run_id, condition, intervention_id FROM edits_trial
      WHERE kind = 'edit' AND condition <> 'skipped') AS t
LEFT JOIN interventions AS i ON i.intervention_id = t.intervention_id

-- statement: cells
SELECT a.* EXCLUDE (checkpoint_id), k.checkpoint_id, c.checkpoint, r.run, r.done, r.planned, r.created_at,
       count(DISTINCT a.intervention_id) FILTER (a.kind = 'edit') OVER (PARTITION BY a.run_id) AS edits_tried,
       dense_rank() OVER (ORDER BY c.place, r.created_at, a.run_id,
                          CASE a.kind WHEN 'clean' THEN 0 WHEN 'edit' THEN 1 ELSE 2 END, a.kind, a.layers::VARCHAR,
                          a.scale, a.intervention) AS cell
FROM conditions AS a
JOIN scoped AS r ON r.run_id = a.run_id
LEFT JOIN (
    SELECT run_id, any_value(checkpoint_id) AS checkpoint_id
    FROM (SELECT run_id, checkpoint_id FROM run_checkpoint
          UNION SELECT run_id, checkpoint_id FROM conditions WHERE checkpoint_id IS NOT NULL)
    GROUP BY run_id HAVING count(*) = 1
) AS k ON k.run_id = a.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id

-- statement: base
SELECT k.cell, t.run_id, t.unit, t.condition, t.sample, t.attempt_id, t.item, t.ply, t.text, t.legal_original,
       t.legal_modified, t.mass_original, t.mass_modified, t.spelled_original, t.spelled_modified, k.kind, k.run, k.checkpoint_id, k.checkpoint,
       k.intervention
FROM edits_trial AS t
JOIN cells AS k ON k.run_id = t.run_id AND k.condition = t.condition
    AND k.intervention_id IS NOT DISTINCT FROM t.intervention_id

-- statement: positions
-- Every state with its position, and whether it is the run's first state of that position.
SELECT run_id, unit, position, position IS NULL OR unit = min(unit) OVER (PARTITION BY run_id, position) AS is_first
FROM (SELECT run_id, unit, coalesce(max(position), max(fen)) AS position
      FROM edits_trial WHERE kind = 'edit' AND sample < 0 AND condition <> 'skipped' GROUP BY ALL)

-- statement: table
WITH counted AS (
    SELECT b.cell, count(DISTINCT b.unit) AS states, count(DISTINCT f.position) AS unique_states,
           count(DISTINCT b.item) AS games, count(*) FILTER (b.sample >= 0) AS samples
    FROM base AS b LEFT JOIN positions AS f USING (run_id, unit)
    GROUP BY b.cell
),
arm AS (
    SELECT cell, any_value(checkpoint) AS checkpoint, any_value(kind) AS condition,
           any_value(intervention) AS intervention, TRY_CAST(any_value(layers) AS BIGINT[]) AS layers,
           any_value(scale) AS scale,
           any_value(scale_rule) AS scale_rule, any_value(edits_tried) AS edits_tried, any_value(run) AS run,
           any_value(done) AS done, any_value(planned) AS planned, any_value(checkpoint_id) AS checkpoint_id,
           any_value(run_id) AS run_id, CASE WHEN any_value(kind) = 'edit' THEN min(intervention_id) END AS intervention_id
    FROM cells
    GROUP BY cell
)
SELECT arm.cell, checkpoint, condition, intervention, CASE WHEN len(layers) = 1 THEN layers[1] END AS layer, layers, scale,
       scale_rule, edits_tried, states, unique_states, games, samples, coalesce(s.skipped, 0) AS skipped,
       o.overlap, o.model_games AS overlap_model_games, o.model_openings AS overlap_model_openings,
       o.model_positions AS overlap_model_positions, o.probe_games AS overlap_probe_games,
       o.probe_openings AS overlap_probe_openings, o.probe_positions AS overlap_probe_positions, run, done,
       planned, checkpoint_id, intervention_id, arm.run_id
FROM arm
JOIN counted ON counted.cell = arm.cell
LEFT JOIN shared_games AS o ON o.run_id = arm.run_id
LEFT JOIN (SELECT run_id, count(*) AS skipped FROM trial WHERE condition = 'skipped' GROUP BY run_id) AS s
    ON s.run_id = arm.run_id
ORDER BY arm.cell

-- statement: clusters
-- A cluster is one game; the same row has the counts of the clean model and of the controls of the same edit. Sums of
-- probabilities are exact decimals: the order in which threads add up floating-point numbers would show.
WITH played AS (
    SELECT b.cell, b.run_id, b.item, any_value(b.kind) AS kind,
           count(*) FILTER (sample >= 0 AND legal_original) AS original,
           count(*) FILTER (sample >= 0 AND legal_modified) AS modified,
           count(*) FILTER (sample >= 0) AS samples,
           count(*) FILTER (sample >= 0 AND legal_modified AND f.is_first) AS unique_modified,
           count(*) FILTER (sample >= 0 AND f.is_first) AS unique_samples,
           sum(exact(mass_original))::DOUBLE AS mass_original,
           sum(exact(mass_modified))::DOUBLE AS mass_modified,
           count(mass_modified) AS states,
           sum(exact_double(spelled_original)) FILTER (sample < 0)::DOUBLE
               AS spelled_original,
           sum(exact_double(spelled_modified)) FILTER (sample < 0)::DOUBLE
               AS spelled_modified,
           count(spelled_modified) FILTER (sample < 0) AS spelled,
           count(*) FILTER (sample < 0 AND legal_original) AS greedy_original,
           count(*) FILTER (sample < 0 AND legal_modified) AS greedy_modified,
           count(*) FILTER (sample < 0) AS greedy
    FROM base AS b LEFT JOIN positions AS f USING (run_id, unit)
    GROUP BY b.cell, b.run_id, b.item
),
beside AS (
    SELECT DISTINCT e.cell, c.cell AS control_cell, c.kind
    FROM cells AS e
    JOIN cells AS c ON c.run_id = e.run_id AND c.kind IN ('random', 'shuffled') AND c.layers::VARCHAR = e.layers::VARCHAR
        AND c.scale = e.scale AND c.scale_rule = e.scale_rule AND c.token_mask = e.token_mask
    WHERE e.kind = 'edit'
)
SELECT p.cell, p.original, p.modified, p.samples, p.unique_modified, p.unique_samples,
       coalesce(p.mass_original, 0) AS mass_original, coalesce(p.mass_modified, 0) AS mass_modified, p.states,
       coalesce(p.spelled_original, 0) AS spelled_original, coalesce(p.spelled_modified, 0) AS spelled_modified,
       p.spelled, p.greedy_original, p.greedy_modified, p.greedy,
       c.original AS base_original, c.modified AS base_modified, c.samples AS base_samples,
       c.mass_modified AS base_mass_modified, c.states AS base_states, r.modified AS random_modified,
       r.samples AS random_samples, s.modified AS shuffled_modified, s.samples AS shuffled_samples,
       count(*) AS clusters
FROM played AS p
LEFT JOIN played AS c ON c.kind = 'clean' AND p.kind <> 'clean' AND c.run_id = p.run_id AND c.item = p.item
LEFT JOIN beside AS br ON br.cell = p.cell AND br.kind = 'random'
LEFT JOIN played AS r ON r.cell = br.control_cell AND r.item = p.item
LEFT JOIN beside AS bs ON bs.cell = p.cell AND bs.kind = 'shuffled'
LEFT JOIN played AS s ON s.cell = bs.control_cell AND s.item = p.item
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, sample, item AS game, ply, text, legal_original, legal_modified, mass_original,
       mass_modified, intervention, run_id
FROM base
ORDER BY run_place(run_id), unit, condition, sample
