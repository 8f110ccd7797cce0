-- title: training curves
-- topic: training
-- question: How did loss and held-out metrics change during training?
-- aliases: loss curves, learning curves, junkin training loss, loss curve, learning curve, training loss, validation
--       loss, how much the loss drops
-- paper: Junkin 2025, the figures of training and test loss
-- kinds: train, finetune, imported-curves
-- made by: chessreg run train
-- default: run, metric, variant, step; value, lowest, highest; points
-- columns:
--   run: the training run, or the imported log
--   origin: ours, or imported
--   metric: loss (of training), evaluated_loss (on training data, at an evaluation), heldout_loss, heldout_accuracy and
--       further measurements
--   variant: the variant of the model, if the log names one (causal)
--   evaluation: 1, 2, …: the number of the value, if the log has several for the same step
--   step [steps]: updates; of several points the last
--   value: the logged value, an accuracy as a share; the mean of several points
--   points: number of logged points behind it; a curve has at most 100 values
--   lowest: the lowest of these points
--   highest: the highest of these points
--   checkpoint: the model that was trained
--   checkpoint_id [hidden]: its id
-- plot: loss curves
--   aliases: junkin figure loss
--   form: lines
--   x: step
--   y: value
--   series: run, metric, variant, evaluation
--   panels: origin
--   where: metric IN ('loss', 'evaluated_loss', 'heldout_loss')
-- plot: accuracy curves
--   form: lines
--   x: step
--   y: value
--   series: run, metric, variant, evaluation
--   panels: origin
--   where: metric = 'heldout_accuracy'

-- statement: cells
-- The model of a training run is its output, not its input. The model of an import is the named one.
SELECT r.run_id, r.run, CASE WHEN r.kind IN ('train', 'finetune') THEN 'ours' ELSE 'imported' END AS origin, c.checkpoint_id, c.checkpoint
FROM scoped AS r
LEFT JOIN (
    SELECT k.run_id, v.checkpoint_id, v.checkpoint FROM checkpoint AS k JOIN checkpoints AS v ON v.checkpoint_id = k.id
    UNION ALL
    SELECT i.run_id, i.checkpoint_id, v.checkpoint
    FROM run_checkpoint AS i JOIN checkpoints AS v USING (checkpoint_id)
    JOIN scoped AS s ON s.run_id = i.run_id AND s.kind = 'imported-curves'
) AS c ON c.run_id = r.run_id
WHERE r.kind IN ('train', 'finetune', 'imported-curves')

-- statement: base
-- Every point, with its place in its curve.
SELECT dense_rank() OVER (ORDER BY run_place(run_id), name, unit, part) AS cell, *
FROM (
    SELECT p.run_id, p.unit, p.attempt_id, p.name, p.step, p.value, c.run, c.origin, c.checkpoint_id, c.checkpoint,
           split_part(p.name, '/', 1) AS metric, nullif(split_part(p.name, '/', 2), '') AS variant,
           CASE WHEN count(*) OVER curve <= 100 THEN row_number() OVER (curve ORDER BY p.step)
                ELSE ntile(100) OVER (curve ORDER BY p.step) END AS part
    FROM metric_point AS p JOIN cells AS c ON c.run_id = p.run_id
    WHERE p.name NOT IN ('tokens_seen', 'tokens_per_second', 'step_milliseconds', 'left_out') AND NOT starts_with(p.name, 'overlap')
    WINDOW curve AS (PARTITION BY p.run_id, p.name, p.unit)
)

-- statement: table
SELECT cell, run, origin, metric, variant, any_value(unit) + 1 AS evaluation, max(step) AS step, avg(value) AS value,
       count(*) AS points, min(value) AS lowest, max(value) AS highest, checkpoint, checkpoint_id
FROM base
GROUP BY cell, run, origin, metric, variant, checkpoint, checkpoint_id
ORDER BY cell

-- statement: rows
SELECT run_id, unit, name, step, value, run, checkpoint
FROM base
ORDER BY run_place(run_id), unit, name, step
