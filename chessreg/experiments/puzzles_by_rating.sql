-- title: puzzles by rating
-- topic: ratings
-- question: How many Lichess puzzles does the model solve at each rating?
-- aliases: puzzles, puzzle accuracy, tactics, mate in 2, mate
-- paper: Junkin and Nathanson 2025, puzzles of Ruoss et al. 2024
-- kinds: puzzles
-- made by: chessreg run puzzles
-- default: checkpoint, intervention, policy, rating; first, line, legal; n
-- columns:
--   checkpoint: the model
--   encoding: the model's encoding of chess
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   policy: policy that chooses its moves, and the temperatures if set
--   dataset: the puzzles, and their part
--   rating: rating of the puzzles, in bins of 400
--   n [puzzles]: evaluated puzzles
--   unread [puzzles]: skipped puzzles, whose position the model cannot read
--   mean_rating: mean rating of the evaluated puzzles
--   first [%]: puzzles whose first move is the solution's or mates; puzzles are resampled
--   line [%]: puzzles whose every move is
--   legal [%]: puzzles in which no move was illegal
--   share [%]: mean probability of the solution's first move among the legal ones
--   mass [%]: mean exact probability of a legal move in the puzzle's position
--   run: the puzzles run
--   done [puzzles]: completed units
--   planned [puzzles]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   first = percent(first, asked)
--   line = percent(solved, asked)
--   legal = percent(legal, asked)
--   share = percent(share, asked)
--   mass = percent(mass, asked)
-- plot: puzzles by rating
--   form: bars
--   x: rating
--   y: first
--   series: checkpoint, intervention, policy, dataset, run
--   where: rating <> 'all'

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, p.run_id, v.number) AS cell, p.run_id, p.unit, p.attempt_id,
       p.item, p.text, p.value AS solved, p."first", p.moves, p."right", p.illegal, p.share, p.mass,
       p.rating AS puzzle_rating, v.rating, r.run, r.done, r.planned, k.checkpoint_id, c.checkpoint,
       coalesce(i.intervention, 'none') AS intervention,
       q.policy || coalesce(' ' || nullif(trim(q.temperatures::VARCHAR, '[]'), ''), '') AS policy,
       t.tokenizer AS encoding, coalesce(d.dataset, q.dataset) AS dataset
FROM puzzles_prediction AS p
JOIN scoped AS r ON r.run_id = p.run_id AND r.kind = 'puzzles'
JOIN puzzles_run AS q ON q.run_id = p.run_id
JOIN run_checkpoint AS k ON k.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN checkpoint AS t ON t.id = k.checkpoint_id
LEFT JOIN datasets AS d ON d.reference = q.dataset
LEFT JOIN interventions AS i ON i.intervention_id = TRY_CAST(p.intervention_id AS UUID)
CROSS JOIN LATERAL (
    SELECT v.number, v.rating
    FROM (SELECT p.rating // 400 AS number, (p.rating // 400 * 400) || '–' || (p.rating // 400 * 400 + 399) AS rating
          WHERE p.rating IS NOT NULL UNION ALL SELECT -1, 'all') AS v
) AS v

-- statement: table
SELECT cell, checkpoint, encoding, intervention, policy, dataset, rating, count(solved) AS n,
       count(*) - count(solved) AS unread, avg(puzzle_rating) FILTER (solved IS NOT NULL) AS mean_rating, run, done,
       planned, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
SELECT cell, "first"::BIGINT AS "first", solved::BIGINT AS solved, (NOT illegal)::BIGINT AS legal, share, mass,
       1::BIGINT AS asked, count(*) AS clusters
FROM base
WHERE solved IS NOT NULL
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS puzzle, puzzle_rating, solved, "first", moves, "right", illegal,
       text, share, run_id
FROM base
ORDER BY run_place(run_id), unit
