-- title: legal moves by phase
-- topic: legal moves
-- question: How often is the predicted token legal in each phase of a move?
-- aliases: legal tokens by phase, token legality, legality by phase, legal rate, legal moves
-- paper: Davis 2026, Table 2 and section 4.2
-- kinds: token-legality
-- made by: chessreg run token-legality
-- default: checkpoint, dataset, phase; strict, loose, mass; positions, n_games
-- columns:
--   checkpoint: the model
--   encoding: the model's encoding of chess
--   dataset: the games, and their part
--   games_of: the first in file order, or the shortest (Davis's code)
--   phase: kind of the last token that the model read; for UCI squares an origin, a destination, a promotion, or the
--       beginning
--   positions [tokens]: predicted tokens
--   n_games [games]: games of these tokens
--   strict [%]: most probable tokens that continue a legal move after the tokens read; games are resampled
--   loose [%]: most probable tokens that are legal by Davis's rule, which ignores the origin
--   mass [%]: mean probability of all strictly legal tokens
--   near_promotion [tokens]: predictions at most this many tokens after a promotion are counted separately
--   after_promotion [%]: strictly legal tokens among these predictions
--   near [tokens]: number of these predictions
--   errors [tokens]: predictions that are not strictly legal
--   run: the run
--   done [games]: completed units
--   planned [games]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   strict = percent(correct, n)
--   loose = percent(loose, loose_n)
--   mass = percent(mass, n)
--   after_promotion = percent(near_correct, near)
-- plot: legal moves by phase
--   form: bars
--   x: phase
--   y: strict
--   series: checkpoint, run
--   where: phase <> 'all'

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, s.run_id, m.number) AS cell, s.run_id, s.unit, s.attempt_id,
       s.item, s.split, s.n, s.correct, s.loose, s.mass, s.near, s.near_correct, m.phase, q.near_promotion,
       CASE WHEN q.shortest THEN 'the shortest' ELSE 'file order' END AS games_of,
       r.run, r.done, r.planned, k.checkpoint_id, c.checkpoint, t.tokenizer AS encoding,
       coalesce(d.dataset, q.dataset) AS dataset
FROM token_legality_score AS s
JOIN scoped AS r ON r.run_id = s.run_id AND r.kind = 'token-legality'
JOIN token_legality_run AS q ON q.run_id = s.run_id
JOIN run_checkpoint AS k ON k.run_id = s.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN checkpoint AS t ON t.id = k.checkpoint_id
LEFT JOIN datasets AS d ON d.reference = q.dataset
CROSS JOIN LATERAL (
    SELECT v.number, v.phase
    FROM (SELECT s.phase AS number, s.split AS phase UNION ALL SELECT -1, 'all') AS v
) AS m

-- statement: table
SELECT cell, checkpoint, encoding, dataset, games_of, phase, sum(n)::BIGINT AS positions,
       count(DISTINCT item) AS n_games, near_promotion, coalesce(sum(near), 0)::BIGINT AS near,
       sum(n - correct)::BIGINT AS errors, run, done, planned, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
WITH played AS (
    SELECT cell, run_id, item, sum(n)::BIGINT AS n, sum(correct)::BIGINT AS correct,
           coalesce(sum(loose), 0)::BIGINT AS loose, coalesce(sum(n) FILTER (loose IS NOT NULL), 0)::BIGINT AS loose_n,
           coalesce(sum(exact(mass)), 0)::DOUBLE AS mass, coalesce(sum(near), 0)::BIGINT AS near,
           coalesce(sum(near_correct), 0)::BIGINT AS near_correct
    FROM base
    GROUP BY cell, run_id, item
)
SELECT cell, n, correct, loose, loose_n, mass, near, near_correct, count(*) AS clusters
FROM played
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT b.run || ':' || b.unit AS board, b.run, b.unit, b.item AS game, b.split AS read_phase, b.n AS positions,
       b.correct AS strict, b.loose, b.mass, b.near, b.near_correct, b.run_id
FROM base AS b
ORDER BY run_place(b.run_id), b.unit, b.split
