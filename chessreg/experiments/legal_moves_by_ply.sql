-- title: legal moves by ply
-- topic: legal moves
-- question: How does the share of legal moves change along the game?
-- aliases: legal move rate, first-try legal rate, legality, legality by ply, legal rate by ply
-- paper: Karvonen 2024, section 2.2
-- kinds: legality
-- made by: chessreg run legality
-- default: checkpoint, moves; legal, mass, valid; positions, games
-- columns:
--   checkpoint: the model
--   moves: full moves of the game, in bins of ten
--   positions [positions]: evaluated turns
--   games [games]: games of these turns
--   legal [%]: turns whose greedy text is a legal move, with its interval; games are resampled
--   mass [%]: mean exact probability of a legal move; none: not computed
--   valid [%]: mean probability of a text in the form of a move, legal or not; none: not computed
--   run: the legality run
--   done [games]: completed units
--   planned [games]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   legal = percent(legal, positions)
--   mass = percent(mass, massed)
--   valid = percent(valid, formed)
-- plot: legal moves by ply
--   form: bars
--   x: moves
--   y: legal
--   series: checkpoint, run
--   where: moves <> 'all'

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, t.run_id, m.number) AS cell, t.run_id,
       t.unit, t.condition, t.sample, t.attempt_id, t.item, t.ply, t.text, t.legal_original, t.mass_original, t.valid_mass,
       m.moves, r.run, r.done, r.planned, k.checkpoint_id, c.checkpoint
FROM legality_trial AS t
JOIN scoped AS r ON r.run_id = t.run_id AND r.kind = 'legality'
JOIN run_checkpoint AS k ON k.run_id = t.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
CROSS JOIN LATERAL (
    SELECT v.number, v.moves
    FROM (SELECT t.ply // 20 AS number, (t.ply // 20 * 10 + 1) || '–' || (t.ply // 20 * 10 + 10) AS moves
          UNION ALL SELECT -1, 'all') AS v
) AS m

-- statement: table
SELECT cell, checkpoint, moves, count(*) AS positions, count(DISTINCT item) AS games, run, done, planned,
       checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
WITH played AS (
    SELECT cell, run_id, item, count(*) FILTER (legal_original) AS legal, count(*) AS positions,
           coalesce(sum(exact(mass_original)), 0)::DOUBLE AS mass, count(mass_original) AS massed,
           coalesce(sum(exact(valid_mass)), 0)::DOUBLE AS valid, count(valid_mass) AS formed
    FROM base
    GROUP BY cell, run_id, item
)
SELECT cell, legal, positions, mass, massed, valid, formed, count(*) AS clusters
FROM played
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS game, ply, text, legal_original, mass_original, run_id
FROM base
ORDER BY run_place(run_id), unit, ply
