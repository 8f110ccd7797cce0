-- title: mask ablation
-- topic: language modelling
-- question: Does a bidirectional attention mask help compared with a causal one?
-- aliases: twins, fen against pgn, bidirectional against causal, causal against bidirectional,
--       causal vs bidirectional, attention mask
-- paper: Junkin and Nathanson 2025, sections 3.1 and 4.2; its control of equal decisions is not in the paper
-- kinds: move-accuracy
-- made by: chessreg run move-accuracy --source-games GAMES, once for each twin
-- default: checkpoint, minus, differs, dataset; best, legal; n
-- columns:
--   checkpoint: the model
--   minus: its twin with equal layers and width, on the same positions; trained with the same seed if both record it
--   differs: the difference of the two: the mask, or the input (a position, or the game before it). If their
--       numbers of trained moves differ, it also states whether their model FLOPs are equal (within 10 %), unequal
--       or unknown
--   layers [layers]: blocks of each
--   d_model: width of the residual stream of each
--   seed: seed of its training; none: trained elsewhere
--   learned: moves of its training
--   twin_learned: moves of the twin's training
--   flops: model FLOPs of the first model's training: 6 for each weight of its blocks and each processed token
--   twin_flops: the same for the twin
--   dataset: the positions, and their part
--   of_games: dataset of the positions' games
--   n [positions]: positions that both evaluated
--   n_games [games]: games of these positions
--   best [%]: best moves of greedy answers, the first minus the twin, same positions; games are resampled
--   legal_best [%]: the same of the most probable legal move
--   legal [%]: the same of legal greedy answers
--   mass [%]: the same of the exact probability of a legal move
--   nats [nats]: the same of the cross-entropy of the best move: below 0 the first is better
--   run: the first model's run
--   minus_run: the twin's
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   best = percent_difference(best, n, other_best, n)
--   legal_best = percent_difference(legal_best, n, other_legal_best, n)
--   legal = percent_difference(legal, n, other_legal, n)
--   mass = percent_difference(mass, n, other_mass, n)
--   nats = mean_difference(nats, n, other_nats, n)
-- plot: mask ablation
--   form: dots
--   x: differs
--   y: legal_best
--   series: layers, d_model, seed, minus
-- statements of: move_accuracy.sql to asked

-- statement: models
-- The unedited models except language models; the bidirectional one first, a model of games last.
SELECT a.run_id, any_value(k.checkpoint_id) AS checkpoint_id, any_value(c.checkpoint) AS checkpoint,
       any_value(c.place) AS place, any_value(c.layers) AS layers, any_value(c.d_model) AS d_model,
       any_value(c.tokens_seen) AS learned, any_value(c.flops) AS flops, any_value(a.reference) AS reference,
       any_value(a.games_reference) AS games_reference, any_value(a.unseen_of) AS unseen_of,
       any_value(a.positions) AS positions, any_value(t.seed + t.replicate) AS seed,
       CASE WHEN any_value(c.attention) = 'bidirectional' THEN 0 WHEN any_value(c.tokenizer) = 'fen-77' THEN 1
            ELSE 2 END AS sort_of
FROM asked AS a
JOIN run_checkpoint AS k ON k.run_id = a.run_id
JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
JOIN checkpoint AS m ON m.id = k.checkpoint_id
LEFT JOIN train_run AS t ON t.run_id = m.run_id
WHERE a.intervention = 'none' AND NOT starts_with(c.tokenizer, 'prompt-')
GROUP BY a.run_id

-- statement: pairs
SELECT dense_rank() OVER (ORDER BY a.sort_of, b.sort_of, a.place, b.place, a.run_id, b.run_id) AS cell, a.run_id,
       b.run_id AS minus_run_id, a.checkpoint_id, a.checkpoint, b.checkpoint AS minus, a.layers, a.d_model, a.seed, a.learned,
       b.learned AS twin_learned, a.flops, b.flops AS twin_flops, coalesce(d.dataset, a.reference) AS dataset,
       coalesce(g.dataset, a.games_reference) AS of_games,
       CASE WHEN b.sort_of = 1 THEN 'mask: bidirectional minus causal'
            WHEN a.sort_of = 1 THEN 'input: position minus game' ELSE 'both: bidirectional position minus game' END
       || CASE WHEN abs(a.learned - b.learned) <= 0.02 * b.learned THEN ''
               WHEN a.learned IS NULL OR b.learned IS NULL THEN ', training not known'
               WHEN abs(a.flops - b.flops) <= 0.1 * b.flops THEN ', equal compute' ELSE ', unequal training' END
           AS differs
FROM models AS a
JOIN models AS b ON b.sort_of > a.sort_of AND b.layers = a.layers AND b.d_model = a.d_model
    AND b.reference = a.reference AND b.games_reference IS NOT DISTINCT FROM a.games_reference
    AND b.unseen_of IS NOT DISTINCT FROM a.unseen_of AND b.positions = a.positions
    AND coalesce(a.seed = b.seed, true)
LEFT JOIN datasets AS d ON d.reference = a.reference
LEFT JOIN datasets AS g ON g.reference = a.games_reference

-- statement: base
SELECT p.cell, p.checkpoint_id, p.checkpoint, p.minus, p.minus_run_id, a.run_id, a.unit, a.attempt_id, a.item, a.ply,
       a.best, a.legal_best, a.legal, a.mass, a.nats, a.text, b.best AS other_best, b.legal_best AS other_legal_best,
       b.legal AS other_legal, b.mass AS other_mass, b.nats AS other_nats, b.text AS other_text
FROM pairs AS p
JOIN asked AS a ON a.run_id = p.run_id
JOIN asked AS b ON b.run_id = p.minus_run_id AND b.unit = a.unit AND b.item = a.item
WHERE a.nats IS NOT NULL AND b.nats IS NOT NULL

-- statement: sources
SELECT cell, run_id FROM base
UNION
SELECT cell, minus_run_id FROM base

-- statement: table
SELECT p.cell, p.checkpoint, p.minus, p.differs, p.layers, p.d_model, p.seed, p.learned, p.twin_learned, p.flops,
       p.twin_flops, p.dataset, p.of_games, count(*) AS n,
       count(DISTINCT b.unit) AS n_games, r.run, o.run AS minus_run, p.checkpoint_id, p.run_id
FROM pairs AS p
JOIN base AS b ON b.cell = p.cell
JOIN runs AS r ON r.run_id = p.run_id
JOIN runs AS o ON o.run_id = p.minus_run_id
GROUP BY ALL
ORDER BY p.cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT cell, unit, count(*) AS n, sum(best::BIGINT)::BIGINT AS best, sum(other_best::BIGINT)::BIGINT AS other_best,
           sum(legal_best::BIGINT)::BIGINT AS legal_best, sum(other_legal_best::BIGINT)::BIGINT AS other_legal_best,
           sum(legal::BIGINT)::BIGINT AS legal, sum(other_legal::BIGINT)::BIGINT AS other_legal,
           sum(exact(mass))::DOUBLE AS mass, sum(exact(other_mass))::DOUBLE AS other_mass,
           sum(exact(nats))::DOUBLE AS nats, sum(exact(other_nats))::DOUBLE AS other_nats
    FROM base GROUP BY cell, unit
)
SELECT cell, n, best, other_best, legal_best, other_legal_best, legal, other_legal, mass, other_mass, nats, other_nats,
       count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT r.run || ':' || b.unit AS board, r.run, o.run AS minus_run, b.unit, b.item AS "position", b.ply, b.text,
       b.other_text, b.best, b.other_best, b.legal_best, b.other_legal_best, b.legal, b.other_legal, b.nats,
       b.other_nats, b.run_id
FROM base AS b JOIN runs AS r ON r.run_id = b.run_id JOIN runs AS o ON o.run_id = b.minus_run_id
ORDER BY run_place(b.run_id), b.unit, b.cell, b.item
