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
-- plot: legal move mass by square
--   form: board
--   x: square
--   y: target
--   series: checkpoint, type, scale, run
--   panels: piece

-- statements of: legal_move_mass_by_edit.sql to paired

-- statement: places
SELECT p.* EXCLUDE (cell), k.layers, k.scale, k.done, k.planned, k.intervention_id AS edit_id,
       dense_rank() OVER (ORDER BY p.cell, list_position(['P', 'N', 'B', 'R', 'Q', 'K', 'p', 'n', 'b', 'r', 'q', 'k'], p.piece),
                          substr(p.square, 2), p.square) AS cell
FROM paired AS p JOIN cells AS k ON k.cell = p.cell
WHERE p.kind <> 'clean' AND p.piece IS NOT NULL

-- statement: table
SELECT cell, checkpoint, type, TRY_CAST(layers AS BIGINT[]) AS layers, scale, piece, square, count(*) AS cases,
       count(DISTINCT item) AS games, any_value(run) AS run, any_value(done) AS done, any_value(planned) AS planned,
       any_value(checkpoint_id) AS checkpoint_id, any_value(edit_id) AS intervention_id, any_value(run_id) AS run_id
FROM places
GROUP BY cell, checkpoint, type, layers, scale, piece, square
ORDER BY cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT cell, item, count(*) AS cases, sum(original)::DOUBLE AS original, sum(target)::DOUBLE AS target,
           sum(none_target)::DOUBLE AS none_target
    FROM places GROUP BY cell, item
)
SELECT cell, cases, original, target, none_target, count(*) AS clusters FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, type, item AS game, ply, piece, square, text,
       original::DOUBLE AS original, target::DOUBLE AS target, future::DOUBLE AS future, argmax_kept, kl, run_id
FROM places
ORDER BY run_place(run_id), unit, condition
