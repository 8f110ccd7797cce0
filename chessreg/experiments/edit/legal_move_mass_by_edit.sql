-- title: legal move mass by edit
-- topic: board edits
-- question: How much probability goes to moves that are legal on the edited board?
-- aliases: legal move mass, lmpm, davis figure 5, davis figure 6, legal move probability mass, probe edits,
--       davis edits
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, sections 4.7 and 4.8, Figures 5 and 6
-- kinds: edit-next-token
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
-- made by: chessreg run edit-next-token --preset davis-corrected
-- default: checkpoint, type, layers, scale; target, original, minus_random; cases
-- columns:
--   checkpoint: the model
--   protocol: the preset that the settings match: paper, published code or corrected; own: none of these
--   type: None (the clean model), Random, Patch (the residual of a later board), Probe, SAE-Probe, CD-Probe (difference
--       of means of latents), DM-Probe (of residuals); Shuffled (another piece's direction), Wrong layer, Length 0.
--       For several edits by probes of one sort, those of --other-probes have their number: SAE-Probe 2
--   probe [hidden]: the run of the probe whose directions are added
--   layers: edited, 0-based; a control has the layers of its edit
--   scale: value of --scale, which --scale-rule interprets
--   scale_rule [hidden]: the rule that turns the scale into a length
--   cases [cases]: edited prefixes of games
--   games [games]: games of these cases
--   kings [cases]: cases that remove a king, where pseudo-legal moves count as legal
--   original: mean probability of tokens that begin a legal move on the original board; games are resampled
--   original_sd: its standard deviation over cases
--   target: the same on the target board of the edit
--   target_sd: its standard deviation
--   future: the same on the later board of the game
--   future_sd: its standard deviation
--   gain: target minus the clean model's, same cases
--   minus_random: target minus that of random directions of the same layers and scale, same cases
--   original_change: original minus the clean model's, same cases
--   argmax_kept [%]: cases whose most probable token is the clean model's
--   kl [nats]: mean Kullback-Leibler divergence of the clean distribution from the edited one
--   edit_norm [hidden]: mean length of the edit at its lowest layer
--   welch_log10_p: log10 of p of target against the clean model's, one-sided, treating samples as independent (as published)
--   welch_holm_log10_p: the same, corrected by Holm over the rows of the run
--   paired_log10_p: log10 of p of the differences, one-sided, treating cases as independent
--   cohens_d: Cohen's d of target against the clean model's
--   run: the edit run
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
--   run_id [hidden]: id of the run
-- statistics:
--   original = mean(original, cases)
--   target = mean(target, cases)
--   future = mean(future, later)
--   gain = mean_difference(target, cases, none_target, paired_cases)
--   minus_random = mean_difference(beside_random, randoms, random_target, randoms)
--   original_change = mean_difference(original, cases, none_original, paired_cases)
--   argmax_kept = percent(kept, cases)
--   kl = mean(kl, cases)
--   welch_log10_p = welch_log10_p(target, target_squares, cases, none_target, none_squares, paired_cases)
--   welch_holm_log10_p = holm_log10(welch_log10_p, run_id)
--   paired_log10_p = paired_log10_p(difference, difference_squares, paired_cases)
--   cohens_d = cohens_d(target, target_squares, cases, none_target, none_squares, paired_cases)
-- stored: conditions, sums
-- plot: legal move mass by edit
--   aliases: davis figure 5 bars
--   form: dots
--   x: type
--   y: target
--   series: run
--   panels: checkpoint

-- statement: skipped
SELECT run, reason, states, hint FROM skipped_edits
WHERE kind = 'edit-next-token' AND run_id IN (SELECT run_id FROM scoped)
ORDER BY states DESC, run, reason, hint

-- statement: parts
-- A part is a run.
SELECT run_id::VARCHAR AS part, run_id FROM scoped WHERE kind = 'edit-next-token' ORDER BY run_id

-- statement: conditions
-- Every condition of runs that read the next token; `kind` is the condition without its number. A part has one cell for
-- each kind and setting, numbered from 1.
SELECT *, dense_rank() OVER (PARTITION BY run_id ORDER BY kind, setting NULLS FIRST) AS number
FROM (SELECT DISTINCT t.run_id, t.condition, t.setting, t.intervention_id,
             regexp_replace(t.condition, '-[0-9]+$', '') AS kind, p.part
      FROM edits_trial AS t JOIN parts AS p ON p.run_id = t.run_id
      WHERE t.kind = 'edit-next-token' AND t.condition <> 'skipped')

-- statement: trials
-- The row of every case and condition.
SELECT t.run_id, t.unit, t.condition, regexp_replace(t.condition, '-[0-9]+$', '') AS kind, t.intervention_id, t.setting,
       t.attempt_id, t.item, t.ply, t.text, t.half, t.piece, t.square, exact_double(t.mass_original) AS original,
       exact_double(t.mass_modified) AS target, exact_double(t.mass_future) AS future, t.argmax_kept,
       t.kl, t.p_square, t.edit_norm
FROM edits_trial AS t
WHERE t.kind = 'edit-next-token' AND t.condition <> 'skipped' AND t.run_id IN (SELECT run_id FROM parts)

-- statement: settings
-- Layers and scale of each edit of a run, which its controls share; a control names its setting.
SELECT DISTINCT t.run_id, t.setting, i.layers, i.scale
FROM conditions AS t JOIN intervention AS i ON i.id = t.intervention_id WHERE t.kind = 'edit'

-- statement: types
-- The paper's name of every condition: one type each. A probe's name contains its source; `number` is its place among
-- --other-probes.
WITH named AS (
    SELECT t.run_id, t.kind, t.setting, min(t.intervention_id) AS intervention_id,
           any_value(i.checkpoint_id) AS checkpoint_id,
           coalesce(whole(regexp_extract(t.kind, '^other([0-9]+)$', 1)), 0) AS number,
           CASE t.kind WHEN 'clean' THEN 'None' WHEN 'random' THEN 'Random' WHEN 'patch' THEN 'Patch'
                WHEN 'shuffled' THEN 'Shuffled' WHEN 'wrong-layer' THEN 'Wrong layer' WHEN 'sham' THEN 'Length 0'
                ELSE CASE min(split_part(i.source, ':', 1)) WHEN 'sae-latents' THEN 'SAE-Probe'
                         WHEN 'sae-contrast' THEN 'CD-Probe' WHEN 'means' THEN 'DM-Probe' ELSE 'Probe' END END AS sort
    FROM conditions AS t LEFT JOIN intervention AS i ON i.id = t.intervention_id
    GROUP BY t.run_id, t.kind, t.setting
)
SELECT *, sort || CASE WHEN number > 0 AND count(*) OVER (PARTITION BY run_id, setting, sort) > 1 THEN ' ' || number
                       ELSE '' END AS type
FROM named

-- statement: cells
SELECT a.run_id, a.kind, a.setting, a.type, b.run AS probe, a.intervention_id, k.checkpoint_id, c.checkpoint, r.run,
       r.done, r.planned,
       coalesce(nullif(k.protocol, ''), 'own') AS protocol, s.layers, s.scale, k.scale_rule,
       dense_rank() OVER (ORDER BY c.place, r.created_at, a.run_id, a.setting NULLS FIRST,
                          list_position(['None', 'Random', 'Patch', 'Probe', 'SAE-Probe', 'CD-Probe', 'DM-Probe'], a.sort)
                          NULLS LAST, a.number, a.kind) AS cell
FROM types AS a
JOIN scoped AS r ON r.run_id = a.run_id
LEFT JOIN settings AS s ON s.run_id = a.run_id AND s.setting IS NOT DISTINCT FROM a.setting
LEFT JOIN (SELECT t.run_id, any_value(i.checkpoint_id) AS checkpoint_id, any_value(i.scale_rule) AS scale_rule,
                  any_value(i.protocol) AS protocol
           FROM types AS t JOIN interventions AS i ON i.intervention_id = t.intervention_id GROUP BY t.run_id) AS k
    ON k.run_id = a.run_id
LEFT JOIN interventions AS v ON v.intervention_id = a.intervention_id AND regexp_matches(a.kind, '^(edit|other)')
LEFT JOIN runs AS b ON 'run:' || b.spec_hash = split_part(v.vector, '/', 1)
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id

-- statement: measured
SELECT c.part, c.number, t.*
FROM trials AS t
JOIN (SELECT DISTINCT part, run_id, condition, setting, number FROM conditions) AS c
    ON c.run_id = t.run_id AND c.condition = t.condition AND c.setting IS NOT DISTINCT FROM t.setting

-- statement: base
SELECT k.cell, k.run, k.checkpoint_id, k.checkpoint, k.type, m.*
FROM measured AS m
JOIN cells AS k ON k.run_id = m.run_id AND k.kind = m.kind AND k.setting IS NOT DISTINCT FROM m.setting

-- statement: paired
-- Every case with that of the clean model and, if the run has one of the same layers and scale, of a random direction.
SELECT b.*, n.original AS none_original, n.target AS none_target, r.target AS random_target
FROM base AS b
LEFT JOIN trials AS n ON n.run_id = b.run_id AND n.unit = b.unit
    AND n.condition IN (SELECT condition FROM conditions WHERE kind = 'clean')
LEFT JOIN (SELECT run_id, unit, setting, exact_double(avg(target)) AS target FROM trials
           WHERE condition IN (SELECT condition FROM conditions WHERE kind = 'random') GROUP BY ALL) AS r
    ON r.run_id = b.run_id AND r.unit = b.unit AND r.setting = b.setting AND b.kind NOT IN ('clean', 'random')

-- statement: sums
-- Sums of doubles are in a fixed order, so that they do not depend on the number of threads.
SELECT part, number, count(*) AS cases, count(DISTINCT item) AS games, count(*) FILTER (piece IN ('k', 'K')) AS kings,
       stddev_samp(original::DOUBLE ORDER BY original) AS original_sd,
       stddev_samp(target::DOUBLE ORDER BY target) AS target_sd,
       stddev_samp(future::DOUBLE ORDER BY future) AS future_sd, avg(edit_norm ORDER BY edit_norm) AS edit_norm
FROM base GROUP BY part, number

-- statement: numbered
SELECT DISTINCT c.part, c.number, k.cell
FROM cells AS k
JOIN conditions AS c ON c.run_id = k.run_id AND c.kind = k.kind AND c.setting IS NOT DISTINCT FROM k.setting

-- statement: table
SELECT k.cell, k.checkpoint, k.protocol, k.type, k.probe, TRY_CAST(k.layers AS BIGINT[]) AS layers, k.scale,
       k.scale_rule, b.* EXCLUDE (part, number), k.run, k.done, k.planned, k.checkpoint_id, k.intervention_id, k.run_id
FROM cells AS k
JOIN numbered AS n ON n.cell = k.cell
JOIN sums AS b ON b.part = n.part AND b.number = n.number
ORDER BY k.cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT part, number, item, count(*) AS cases, sum(original)::DOUBLE AS original, sum(target)::DOUBLE AS target,
           sum(exact_double(target::DOUBLE * target::DOUBLE))::DOUBLE AS target_squares, sum(future)::DOUBLE AS future, count(future) AS later,
           count(*) FILTER (argmax_kept) AS kept, sum(kl ORDER BY kl) AS kl,
           CASE WHEN any_value(kind) <> 'clean' THEN count(none_target) END AS paired_cases,
           CASE WHEN any_value(kind) <> 'clean' THEN sum(none_target)::DOUBLE END AS none_target,
           CASE WHEN any_value(kind) <> 'clean' THEN sum(none_original)::DOUBLE END AS none_original,
           CASE WHEN any_value(kind) <> 'clean'
                THEN sum(exact_double(none_target::DOUBLE * none_target::DOUBLE))::DOUBLE END AS none_squares,
           CASE WHEN any_value(kind) <> 'clean' THEN sum(target - none_target)::DOUBLE END AS difference,
           CASE WHEN any_value(kind) <> 'clean'
                THEN sum(exact_double((target - none_target)::DOUBLE * (target - none_target)::DOUBLE))::DOUBLE END
               AS difference_squares,
           nullif(count(random_target), 0) AS randoms, sum(random_target)::DOUBLE AS random_target,
           sum(CASE WHEN random_target IS NOT NULL THEN target END)::DOUBLE AS beside_random
    FROM paired GROUP BY part, number, item
)
SELECT part, number, cases, original, target, target_squares, future, later, kept, kl, paired_cases, none_target, none_original,
       none_squares, difference, difference_squares, randoms, random_target, beside_random, count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, type, item AS game, ply, piece, square, text,
       original::DOUBLE AS original, target::DOUBLE AS target, future::DOUBLE AS future, argmax_kept, kl, run_id
FROM base
ORDER BY run_place(run_id), unit, condition
