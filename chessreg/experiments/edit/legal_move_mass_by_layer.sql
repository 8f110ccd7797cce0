-- title: legal move mass by layer
-- topic: board edits
-- question: At which layer does a board edit work best?
-- aliases: lmpm by layer, davis ridge plot, edit layer, mass by layer, best edit layer
-- paper: Davis & Sukthankar 2024 (ICMLA), the ridge plot of interventions by layer
-- kinds: edit-next-token
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
-- made by: chessreg run edit-next-token --preset davis-corrected --layer-sets each
-- default: checkpoint, type, layer, scale; target, original, gain; cases
-- columns:
--   checkpoint: the model
--   type: Probe, Random, Patch, … as in the query `legal move mass by edit`
--   layer: the lowest edited layer, 0-based
--   layers [hidden]: all edited layers
--   scale: value of --scale, which --scale-rule interprets
--   cases [cases]: edited prefixes of games
--   games [games]: games of these cases
--   original: mean probability of tokens that begin a legal move on the original board; games are resampled
--   target: the same on the target board of the edit
--   target_sd: its standard deviation over cases
--   q025: 2.5 % quantile of target over cases
--   q10: 10 % quantile
--   q25: 25 % quantile
--   median: median of target over cases
--   q75: 75 % quantile
--   q90: 90 % quantile
--   q975: 97.5 % quantile
--   gain: target minus the clean model's, same cases
--   run: the edit run
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
--   run_id [hidden]: id of the run
-- statistics:
--   original = mean(original, cases)
--   target = mean(target, cases)
--   gain = mean_difference(target, cases, none_target, cases)
-- stored: conditions, sums
-- plot: legal move mass by layer
--   aliases: lmpm by layer lines
--   form: lines
--   x: layer
--   y: target
--   series: type, scale, run
--   panels: checkpoint

-- statements of: legal_move_mass_by_edit.sql to paired

-- statement: sums
SELECT part, number, count(*) AS cases, count(DISTINCT item) AS games,
       stddev_samp(target::DOUBLE ORDER BY target) AS target_sd,
       quantile_cont(target::DOUBLE, 0.025) AS q025, quantile_cont(target::DOUBLE, 0.1) AS q10,
       quantile_cont(target::DOUBLE, 0.25) AS q25, quantile_cont(target::DOUBLE, 0.5) AS median,
       quantile_cont(target::DOUBLE, 0.75) AS q75, quantile_cont(target::DOUBLE, 0.9) AS q90,
       quantile_cont(target::DOUBLE, 0.975) AS q975
FROM base WHERE kind <> 'clean' GROUP BY part, number

-- statement: numbered
SELECT DISTINCT c.part, c.number, k.cell
FROM cells AS k
JOIN conditions AS c ON c.run_id = k.run_id AND c.kind = k.kind AND c.setting IS NOT DISTINCT FROM k.setting

-- statement: table
SELECT k.cell, k.checkpoint, k.type, list_min(TRY_CAST(k.layers AS BIGINT[])) AS layer,
       TRY_CAST(k.layers AS BIGINT[]) AS layers, k.scale, b.* EXCLUDE (part, number), k.run, k.done, k.planned,
       k.checkpoint_id, k.intervention_id, k.run_id
FROM cells AS k
JOIN numbered AS n ON n.cell = k.cell
JOIN sums AS b ON b.part = n.part AND b.number = n.number
ORDER BY k.cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT part, number, item, count(*) AS cases, sum(original)::DOUBLE AS original, sum(target)::DOUBLE AS target,
           sum(none_target)::DOUBLE AS none_target
    FROM paired WHERE kind <> 'clean' GROUP BY part, number, item
)
SELECT part, number, cases, original, target, none_target, count(*) AS clusters FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, type, item AS game, ply, piece, square, text,
       original::DOUBLE AS original, target::DOUBLE AS target, future::DOUBLE AS future, argmax_kept, kl, run_id
FROM base WHERE kind <> 'clean'
ORDER BY run_place(run_id), unit, condition
