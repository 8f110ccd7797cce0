-- title: board intervention legality
-- aliases: board interventions, edits, karvonen table 2, karvonen table 8
-- paper: Karvonen 2024, Table 2, Table 8 and section 4.2
-- made by: chessreg run edit
-- columns:
--   checkpoint: the model
--   condition: clean (no edit), edit (the piece taken off) or random (a direction of the same length)
--   intervention: source, layers (0-based), scale and positions of the edit
--   states [states]: positions with a piece to take off
--   unique_states [states]: different ones among them
--   games [games]: games that they are from
--   samples [texts]: sampled texts
--   original [%]: sampled texts that are legal on the original board, with its interval; games are resampled
--   modified [%]: legal on the board without the piece
--   exact_original [%]: mean exact probability of a legal move on the original board
--   exact_modified [%]: on the board without the piece
--   greedy_modified [%]: greedy texts that are legal on the board without the piece
--   delta_original [%]: original minus clean, same games
--   delta_modified [%]: modified minus clean, same games
--   delta_exact [%]: exact_modified minus clean, same games
--   skipped [states]: no piece to take off: the clean greedy text is illegal or moves the king
--   run: the edit run
--   done [states]: units that are there
--   planned [states]: units of the run
--   checkpoint_id [hidden]: its id
--   run_id [hidden]: its id
-- statistics:
--   original = percent(original, samples)
--   modified = percent(modified, samples)
--   exact_original = percent(mass_original, states)
--   exact_modified = percent(mass_modified, states)
--   greedy_modified = percent(greedy_modified, greedy)
--   delta_original = percent_difference(original, samples, base_original, base_samples)
--   delta_modified = percent_difference(modified, samples, base_modified, base_samples)
--   delta_exact = percent_difference(mass_modified, states, base_mass_modified, base_states)

-- statement: conditions
-- One row per run, condition and intervention. Random directions random-0, random-1, … are one condition.
SELECT DISTINCT t.run_id, t.condition, regexp_replace(t.condition, '-[0-9]+$', '') AS kind, t.intervention_id,
       i.checkpoint_id, coalesce(i.intervention, 'none') AS intervention
FROM (SELECT DISTINCT run_id, condition, intervention_id FROM trial WHERE condition <> 'skipped'
      AND run_id IN (SELECT run_id FROM trial WHERE intervention_id IS NOT NULL)) AS t
LEFT JOIN interventions AS i ON i.intervention_id = t.intervention_id

-- statement: cells
SELECT a.run_id, a.condition, a.intervention_id, a.intervention, a.kind, k.checkpoint_id, c.checkpoint, r.run, r.done,
       r.planned, r.created_at,
       dense_rank() OVER (ORDER BY c.checkpoint, k.checkpoint_id, r.created_at, a.run_id,
                          CASE a.kind WHEN 'clean' THEN 0 WHEN 'edit' THEN 1 ELSE 2 END, a.kind, a.intervention) AS cell
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
       t.legal_modified, t.mass_original, t.mass_modified, t.detail, k.kind, k.run, k.checkpoint_id, k.checkpoint,
       k.intervention
FROM trial AS t
JOIN cells AS k ON k.run_id = t.run_id AND k.condition = t.condition
    AND k.intervention_id IS NOT DISTINCT FROM t.intervention_id

-- statement: table
WITH counted AS (
    SELECT cell, count(DISTINCT unit) AS states, count(DISTINCT f.fen) AS unique_states, count(DISTINCT item) AS games,
           count(*) FILTER (sample >= 0) AS samples
    FROM base
    LEFT JOIN (SELECT run_id, unit, max(fen) AS fen FROM trial GROUP BY ALL) AS f USING (run_id, unit)
    GROUP BY cell
),
arm AS (
    SELECT DISTINCT cell, checkpoint, kind AS condition, intervention, run, done, planned, checkpoint_id, run_id
    FROM cells
)
SELECT arm.cell, checkpoint, condition, intervention, states, unique_states, games, samples,
       coalesce(s.skipped, 0) AS skipped, run, done, planned, checkpoint_id, arm.run_id
FROM arm
JOIN counted ON counted.cell = arm.cell
LEFT JOIN (SELECT run_id, count(*) AS skipped FROM trial WHERE condition = 'skipped' GROUP BY run_id) AS s
    ON s.run_id = arm.run_id
ORDER BY arm.cell

-- statement: clusters
-- A cluster is one game; beside its counts stand those of the clean model. Sums of probabilities are exact decimals:
-- the order in which threads add up floating-point numbers would show.
WITH played AS (
    SELECT cell, run_id, item, any_value(kind) AS kind,
           count(*) FILTER (sample >= 0 AND legal_original) AS original,
           count(*) FILTER (sample >= 0 AND legal_modified) AS modified,
           count(*) FILTER (sample >= 0) AS samples,
           sum(mass_original::DECIMAL(18, 15))::DOUBLE AS mass_original,
           sum(mass_modified::DECIMAL(18, 15))::DOUBLE AS mass_modified,
           count(mass_modified) AS states,
           count(*) FILTER (sample < 0 AND legal_modified) AS greedy_modified,
           count(*) FILTER (sample < 0) AS greedy
    FROM base
    GROUP BY cell, run_id, item
)
SELECT p.cell, p.original, p.modified, p.samples, coalesce(p.mass_original, 0) AS mass_original,
       coalesce(p.mass_modified, 0) AS mass_modified, p.states, p.greedy_modified, p.greedy,
       c.original AS base_original, c.modified AS base_modified, c.samples AS base_samples,
       c.mass_modified AS base_mass_modified, c.states AS base_states, count(*) AS clusters
FROM played AS p
LEFT JOIN played AS c ON c.kind = 'clean' AND p.kind <> 'clean' AND c.run_id = p.run_id AND c.item = p.item
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, sample, item AS game, ply, text, legal_original, legal_modified, mass_original,
       mass_modified, intervention, run_id
FROM base
ORDER BY run_id, unit, condition, sample
