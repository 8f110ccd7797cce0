-- title: imported interventions
-- topic: board edits
-- question: Which scores did published grid searches of interventions report?
-- aliases: grid search, imported aggregates, published interventions
-- paper: Karvonen 2024, section 4.2 and Table 6 (the author's grid searches)
-- kinds: imported-aggregates
-- made by: chessreg run imported-aggregates
-- default: checkpoint, intervention, opening, metric; value, low, high; n
-- columns:
--   checkpoint: the model that played
--   intervention: source, layers (0-based) and scale of the edit; none: the unedited model
--   opening: standard or random:PLIES
--   metric: a mean score, or a percentage of games without a forfeit
--   value: as published
--   low: lower end of its published interval
--   high: upper end of its published interval
--   delta: value minus the mean of the model's values without intervention, of the same metric, table and opening
--   n [games]: games behind the value; none: not published
--   without_forfeit [%]: games without a forfeit, if published with the score
--   bins: the classes of skill whose difference the vector is
--   truncated: the author's file name was cut, so layers may be missing
--   table: the table of the author's notebook
--   runs: the import
--   name [hidden]: the author's name of the intervention
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention

-- statement: cells
SELECT a.*, m.* EXCLUDE (run_id, match), s.run, s.created_at
FROM arms AS a
JOIN scoped AS s ON s.run_id = a.run_id AND s.kind = 'imported-aggregates'
JOIN imported_arms AS m ON m.run_id = a.run_id AND m.match = a.match

-- statement: base
SELECT row_number() OVER (ORDER BY c.own_name, c.checkpoint_place, p.name, "table", c.opening, p.value DESC,
                                   c.created_at, p.run_id, p.unit) AS cell, p.*, c.* EXCLUDE (run_id, "match")
FROM cells AS c
JOIN metric_point AS p ON p.run_id = c.run_id AND p.unit = c.match AND p.name = c.metric

-- statement: table
SELECT b.cell, b.checkpoint, b.intervention, b.opening, b.metric, b.value, low.value AS low, high.value AS high,
       CASE WHEN b.intervention_id IS NOT NULL THEN b.value - plain.value END AS delta, whole(n.value) AS n,
       done.value AS without_forfeit, b.bins, b.truncated, b."table", b.run AS runs, b.author_name AS name,
       b.checkpoint_id, b.intervention_id
FROM base AS b
LEFT JOIN metric_point AS low ON low.run_id = b.run_id AND low.unit = b.unit AND low.name = 'low'
LEFT JOIN metric_point AS high ON high.run_id = b.run_id AND high.unit = b.unit AND high.name = 'high'
LEFT JOIN metric_point AS n ON n.run_id = b.run_id AND n.unit = b.unit AND n.name = 'n'
LEFT JOIN metric_point AS done
    ON done.run_id = b.run_id AND done.unit = b.unit AND done.name = 'percent_without_forfeit'
LEFT JOIN (SELECT run_id, checkpoint_id, opening, metric, "table", avg(value) AS value
           FROM base WHERE intervention_id IS NULL GROUP BY ALL) AS plain
    ON plain.run_id = b.run_id AND plain.checkpoint_id = b.checkpoint_id AND plain.opening = b.opening
       AND plain.metric = b.metric AND plain."table" = b."table"
ORDER BY b.cell

-- statement: rows
SELECT b.run, b.unit, p.name, p.value, b.author_name, b.run_id
FROM base AS b JOIN metric_point AS p ON p.run_id = b.run_id AND p.unit = b.unit
ORDER BY run_place(b.run_id), b.unit, p.name
