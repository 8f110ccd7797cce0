-- title: legal move mass between edits
-- topic: board edits
-- question: Which of two edits moves more probability?
-- aliases: difference of edits, paired edits, compare edits, paired test, sae edits against probe edits
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, section 4.8 (paired samples)
-- kinds: edit-next-token
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
-- made by: chessreg run edit-next-token --preset davis-corrected
-- default: checkpoint, type, minus, scale; difference, paired_holm_log10_p; cases
-- columns:
--   checkpoint: the model
--   type: Probe, Random, Patch, … as in the query `legal move mass by edit`
--   minus: the type that it is compared with, of the same run, layers and scale
--   layers [hidden]: edited, 0-based
--   scale: value of --scale, which --scale-rule interprets
--   cases [cases]: prefixes of games that both edit
--   games [games]: games of these cases
--   target: for the first, mean probability of tokens that begin a legal move on the target board
--   other: the same for the second
--   difference: the first minus the second, same cases; games are resampled
--   paired_log10_p: log10 of p of the differences, one-sided, treating cases as independent
--   paired_holm_log10_p: the same, corrected by Holm over the rows of the run
--   run: the edit run
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   target = mean(target, cases)
--   other = mean(other, cases)
--   difference = mean_difference(target, cases, other, cases)
--   paired_log10_p = paired_log10_p(differences, squares, cases)
--   paired_holm_log10_p = holm_log10(paired_log10_p, run_id)
-- plot: difference of edits
--   form: dots
--   x: minus
--   y: difference
--   series: type, scale, run
--   panels: checkpoint

-- statements of: legal_move_mass_by_edit.sql to types

-- statement: drawn
-- Every case under every type; several draws of a random or shuffled direction are averaged.
SELECT t.run_id, t.unit, t.setting, a.type, any_value(t.attempt_id) AS attempt_id, any_value(t.item) AS item,
       any_value(t.ply) AS ply, any_value(t.piece) AS piece, any_value(t.square) AS square,
       avg(t.target::DOUBLE) AS target
FROM trials AS t
JOIN types AS a ON a.run_id = t.run_id AND a.kind = t.kind AND a.setting IS NOT DISTINCT FROM t.setting
GROUP BY t.run_id, t.unit, t.setting, a.type

-- statement: ranked
-- The order of the types: in a pair, the earlier one is compared with the later one.
SELECT *, list_position(['Probe', 'SAE-Probe', 'CD-Probe', 'DM-Probe', 'Patch', 'Shuffled', 'Wrong layer', 'Random',
                         'Length 0', 'None'], sort) AS rank
FROM types

-- statement: pairs
-- Two types of one run, layers and scale; the clean model is compared with each of them.
SELECT a.run_id, a.setting, a.type, b.type AS minus, s.layers, s.scale, a.checkpoint_id,
       dense_rank() OVER (ORDER BY c.place, r.created_at, a.run_id, a.setting, a.type, b.type) AS cell, c.checkpoint,
       r.run, r.done, r.planned
FROM (SELECT * FROM ranked WHERE setting IS NOT NULL) AS a
JOIN ranked AS b ON b.run_id = a.run_id AND (b.setting = a.setting OR b.setting IS NULL)
    AND (a.rank, a.number) < (b.rank, b.number)
JOIN settings AS s ON s.run_id = a.run_id AND s.setting = a.setting
JOIN scoped AS r ON r.run_id = a.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = a.checkpoint_id

-- statement: base
SELECT p.cell, p.run, p.checkpoint_id, p.checkpoint, p.type, p.minus, a.run_id, a.unit, a.attempt_id, a.item, a.ply,
       a.piece, a.square, a.target, b.target AS other
FROM pairs AS p
JOIN drawn AS a ON a.run_id = p.run_id AND a.setting = p.setting AND a.type = p.type
JOIN drawn AS b ON b.run_id = p.run_id AND b.unit = a.unit AND b.type = p.minus
    AND (b.setting = p.setting OR b.setting IS NULL)

-- statement: table
SELECT p.cell, p.checkpoint, p.type, p.minus, TRY_CAST(p.layers AS BIGINT[]) AS layers, p.scale, count(*) AS cases,
       count(DISTINCT b.item) AS games, p.run, p.done, p.planned, p.checkpoint_id, p.run_id
FROM pairs AS p JOIN base AS b ON b.cell = p.cell
GROUP BY p.cell, p.checkpoint, p.type, p.minus, p.layers, p.scale, p.run, p.done, p.planned, p.checkpoint_id, p.run_id
ORDER BY p.cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT cell, item, count(*) AS cases, sum(target) AS target, sum(other) AS other,
           sum(target - other) AS differences, sum((target - other) * (target - other)) AS squares
    FROM base GROUP BY cell, item
)
SELECT cell, cases, target, other, differences, squares, count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, type, minus, item AS game, ply, piece, square, target, other, run_id
FROM base
ORDER BY run_place(run_id), unit, type, minus
