-- title: legal move mass by square
-- topic: board edits
-- question: For which pieces and squares does a board edit work?
-- aliases: lmpm by square, davis square maps, mass by piece, edit by square
-- paper: Davis & Sukthankar 2024 (ICMLA), maps of interventions by piece and square
-- kinds: edit-next-token
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
-- made by: chessreg run edit-next-token --preset davis-corrected
-- default: checkpoint, type, scale, piece, square; target, original; cases
-- columns:
--   checkpoint: the model
--   type: Probe, Random, Patch, … as in the query `legal move mass by edit`
--   layers [hidden]: edited, 0-based
--   scale: value of --scale, which --scale-rule interprets
--   piece: the removed piece, PNBRQK of White, pnbrqk of Black
--   square: the square of the removed piece
--   cases [cases]: prefixes of games with that piece there
--   games [games]: games of these cases
--   original: mean probability of tokens that begin a legal move on the original board; games are resampled
--   target: the same on the board without the piece
--   clean_target: the same of the clean model
--   run: the edit run
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
--   run_id [hidden]: id of the run
-- statistics:
--   original = mean(original, cases)
--   target = mean(target, cases)
--   clean_target = mean(none_target, cases)
-- stored: conditions, squares, sums
-- plot: legal move mass by square
--   form: board
--   x: square
--   y: target
--   series: checkpoint, type, scale, run
--   panels: piece

-- statements of: legal_move_mass_by_edit.sql to measured

-- statement: squares
-- Every piece and square of a condition, numbered from 1 in its part. `condition_number` is the condition's number.
SELECT *, dense_rank() OVER (PARTITION BY part ORDER BY condition_number, piece, square) AS number
FROM (SELECT DISTINCT part, number AS condition_number, run_id, kind, setting, piece, square
      FROM measured WHERE kind <> 'clean' AND piece IS NOT NULL)

-- statement: places
SELECT k.* EXCLUDE (cell), s.part, s.number, s.piece, s.square,
       dense_rank() OVER (ORDER BY k.cell, list_position(['P', 'N', 'B', 'R', 'Q', 'K', 'p', 'n', 'b', 'r', 'q', 'k'], s.piece),
                          substr(s.square, 2), s.square) AS cell
FROM squares AS s JOIN cells AS k ON k.run_id = s.run_id AND k.kind = s.kind AND k.setting IS NOT DISTINCT FROM s.setting

-- statement: base
SELECT p.cell, p.run, p.checkpoint_id, p.checkpoint, p.type, m.*
FROM measured AS m
JOIN places AS p ON p.run_id = m.run_id AND p.kind = m.kind AND p.setting IS NOT DISTINCT FROM m.setting
    AND p.piece = m.piece AND p.square = m.square

-- statement: paired
-- Every case with that of the clean model.
SELECT s.part, s.number, b.item, b.original, b.target, n.target AS none_target
FROM base AS b
JOIN squares AS s ON s.part = b.part AND s.condition_number = b.number AND s.piece = b.piece AND s.square = b.square
LEFT JOIN trials AS n ON n.run_id = b.run_id AND n.unit = b.unit
    AND n.condition IN (SELECT condition FROM conditions WHERE kind = 'clean')

-- statement: sums
SELECT part, number, count(*) AS cases, count(DISTINCT item) AS games FROM paired GROUP BY part, number

-- statement: numbered
SELECT DISTINCT part, number, cell FROM places

-- statement: table
SELECT p.cell, p.checkpoint, p.type, TRY_CAST(p.layers AS BIGINT[]) AS layers, p.scale, p.piece, p.square, b.cases,
       b.games, p.run, p.done, p.planned, p.checkpoint_id, p.intervention_id, p.run_id
FROM places AS p JOIN sums AS b ON b.part = p.part AND b.number = p.number
ORDER BY p.cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT part, number, item, count(*) AS cases, sum(original)::DOUBLE AS original, sum(target)::DOUBLE AS target,
           sum(none_target)::DOUBLE AS none_target
    FROM paired GROUP BY part, number, item
)
SELECT part, number, cases, original, target, none_target, count(*) AS clusters FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, type, item AS game, ply, piece, square, text,
       original::DOUBLE AS original, target::DOUBLE AS target, future::DOUBLE AS future, argmax_kept, kl, run_id
FROM base
ORDER BY run_place(run_id), unit, condition
