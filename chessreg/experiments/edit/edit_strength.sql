-- title: edit strength
-- topic: board edits
-- question: How does the effect depend on the scale of the edit?
-- aliases: edit scale sweep, davis figure 2, scale sweep, effect by scale, edit scale, best alpha
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, Figure 2
-- kinds: edit-next-token
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
-- made by: chessreg run edit-next-token --preset davis-corrected --layer-sets each --scales 0,0.1,0.2,0.5,1,2
-- default: checkpoint, type, layers, scale; target, gain, argmax_kept; cases
-- columns:
--   checkpoint: the model
--   type: Probe, Random, Patch, … as in the query `legal move mass by edit`
--   layers: edited, 0-based
--   scale: value of --scale, which --scale-rule interprets
--   tried [edits]: number of compared pairs of layers and scale
--   chosen: whether it has the most mass on the target board, of its type in this run, on one half of the games
--   chosen_on: mass on the target board on that half (biased for the chosen edit)
--   cases [cases]: prefixes of the other half of the games, which the following columns are computed from
--   games [games]: number of these games
--   original: mean probability of tokens that begin a legal move on the original board; games are resampled
--   target: the same on the target board of the edit
--   gain: target minus the clean model's, same cases
--   original_change: original minus the clean model's, same cases
--   argmax_kept [%]: cases whose most probable token is the clean model's
--   kl [nats]: mean Kullback-Leibler divergence of the clean distribution from the edited one
--   run: the edit run
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
--   run_id [hidden]: id of the run
-- statistics:
--   chosen_on = mean(chosen_target, chosen_cases)
--   original = mean(original, cases)
--   target = mean(target, cases)
--   gain = mean_difference(target, cases, none_target, cases)
--   original_change = mean_difference(original, cases, none_original, cases)
--   argmax_kept = percent(kept, cases)
--   kl = mean(kl, cases)
-- plot: edit strength
--   aliases: davis figure 2 lines
--   form: lines
--   x: scale
--   y: target
--   series: type, layers, run
--   panels: checkpoint

-- statements of: legal_move_mass_by_edit.sql to paired

-- statement: winners
-- The edit of each type with the most mass on the target board, on the choosing half of the games.
SELECT cell FROM (
    SELECT k.cell, row_number() OVER (PARTITION BY k.run_id, k.kind
                                      ORDER BY sum(b.target)::DOUBLE / count(*) DESC, k.setting) AS place
    FROM cells AS k JOIN base AS b ON b.cell = k.cell
    WHERE k.kind <> 'clean' AND b.half = 'choose'
    GROUP BY k.cell, k.run_id, k.kind, k.setting
)
WHERE place = 1

-- statement: table
SELECT k.cell, k.checkpoint, k.type, TRY_CAST(k.layers AS BIGINT[]) AS layers, k.scale,
       (SELECT count(DISTINCT s.setting) FROM settings AS s WHERE s.run_id = k.run_id) AS tried,
       k.cell IN (SELECT cell FROM winners) AS chosen, count(*) FILTER (b.half = 'report') AS cases,
       count(DISTINCT b.item) FILTER (b.half = 'report') AS games, any_value(k.run) AS run, any_value(k.done) AS done,
       any_value(k.planned) AS planned, any_value(k.checkpoint_id) AS checkpoint_id,
       any_value(k.intervention_id) AS intervention_id, k.run_id
FROM cells AS k JOIN base AS b ON b.cell = k.cell
WHERE k.kind <> 'clean'
GROUP BY k.cell, k.checkpoint, k.type, k.layers, k.scale, k.run_id
ORDER BY k.cell

-- statement: clusters
-- A cluster is one game of either half.
WITH summed AS (
    SELECT cell, item, half, count(*) AS cases, sum(original)::DOUBLE AS original, sum(target)::DOUBLE AS target,
           sum(none_target)::DOUBLE AS none_target, sum(none_original)::DOUBLE AS none_original,
           count(*) FILTER (argmax_kept) AS kept, sum(kl) AS kl
    FROM paired WHERE kind <> 'clean' GROUP BY cell, item, half
)
SELECT cell, CASE WHEN half = 'choose' THEN target END AS chosen_target,
       CASE WHEN half = 'choose' THEN cases END AS chosen_cases,
       CASE WHEN half = 'report' THEN cases END AS cases, CASE WHEN half = 'report' THEN original END AS original,
       CASE WHEN half = 'report' THEN target END AS target, CASE WHEN half = 'report' THEN none_target END AS none_target,
       CASE WHEN half = 'report' THEN none_original END AS none_original, CASE WHEN half = 'report' THEN kept END AS kept,
       CASE WHEN half = 'report' THEN kl END AS kl, count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, type, item AS game, ply, piece, square, text,
       original::DOUBLE AS original, target::DOUBLE AS target, future::DOUBLE AS future, argmax_kept, kl, run_id
FROM base WHERE kind <> 'clean'
ORDER BY run_place(run_id), unit, condition
