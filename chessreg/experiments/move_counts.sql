-- title: legal moves per position
-- topic: legal moves
-- question: How many legal moves do positions have?
-- aliases: number of legal moves, junkin figure moves, branching factor
-- paper: Junkin and Nathanson 2025, Appendix F and the histogram of the author's repository
-- kinds: move-counts
-- made by: chessreg run move-counts
-- default: dataset, moves; share, within; n
-- columns:
--   dataset: the positions, and their part
--   moves: legal moves
--   n [positions]: positions with this number of legal moves
--   share [%]: share of all positions
--   within [%]: positions with at most this number; blocks of 10,000 positions are resampled
--   beyond [per 10,000]: positions with more
--   positions [positions]: all counted positions
--   run: the run
--   done: completed units, each 10,000 positions
--   planned: units of the run
--   checkpoint [hidden]: none, because no model is used
--   checkpoint_id [hidden]: none
--   run_id [hidden]: id of the run
-- statistics:
--   within = percent(below, every)
--   beyond = mean(above, every)
-- plot: legal moves per position
--   aliases: figure of legal moves
--   form: lines
--   x: moves
--   y: share
--   series: dataset, run
-- plot: positions within a list of legal moves
--   form: lines
--   x: moves
--   y: within
--   series: dataset, run

-- statement: counted
SELECT p.run_id, p.unit, p.attempt_id, p.step AS moves, whole(p.value) AS n
FROM metric_point AS p
WHERE p.name = 'positions' AND p.run_id IN (SELECT run_id FROM scoped)

-- statement: base
-- Every block at every number of legal moves: positions with exactly this number, with at most this number, and all.
SELECT dense_rank() OVER (ORDER BY run_place(b.run_id), m.moves) AS cell, b.run_id, b.unit, b.attempt_id, m.moves,
       coalesce(c.n, 0) AS n, b.every, coalesce(sum(c.n) OVER up_to, 0)::BIGINT AS below, r.run, r.done, r.planned,
       coalesce(d.dataset, q.dataset) AS dataset, NULL::UUID AS checkpoint_id, NULL::VARCHAR AS checkpoint
FROM (SELECT run_id, unit, attempt_id, sum(n)::BIGINT AS every FROM counted GROUP BY ALL) AS b
JOIN (SELECT run_id, greatest(max(moves), 60) AS most FROM counted GROUP BY run_id) AS l USING (run_id)
CROSS JOIN LATERAL (SELECT unnest(range(0, l.most + 1)) AS moves) AS m
LEFT JOIN counted AS c ON c.run_id = b.run_id AND c.unit = b.unit AND c.moves = m.moves
JOIN scoped AS r ON r.run_id = b.run_id AND r.kind = 'move-counts'
JOIN move_counts_run AS q ON q.run_id = b.run_id
LEFT JOIN datasets AS d ON d.reference = q.dataset
WINDOW up_to AS (PARTITION BY b.run_id, b.unit ORDER BY m.moves)

-- statement: table
SELECT cell, dataset, moves, sum(n)::BIGINT AS n, 100.0 * sum(n) / sum("every") AS share,
       sum("every")::BIGINT AS positions, run, done, planned, checkpoint, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
SELECT cell, below, 10000 * ("every" - below) AS above, "every", count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run, unit, moves, n, below, "every", run_id
FROM base
WHERE n > 0
ORDER BY run_place(run_id), unit, moves
