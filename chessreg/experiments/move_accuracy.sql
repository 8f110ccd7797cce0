-- title: move accuracy by model
-- topic: language modelling
-- question: How often does each model predict the move that was played or best?
-- aliases: move accuracy, best move accuracy, cross-entropy per move, top-1 accuracy, move prediction,
--       human move match, agreement with human moves, fen policies, fen or pgn, uci or san, notation, tokenization,
--       8 layer or 16 layer
-- paper: Junkin and Nathanson 2025, sections 4.2 and 4.3, Appendix B
-- kinds: move-accuracy
-- made by: chessreg run move-accuracy
-- default: checkpoint, encoding, seed, dataset; best, legal, mass; n
-- columns:
--   checkpoint: the model
--   encoding: the model's encoding of chess
--   attention: tokens that a token attends to: causal, the earlier ones; bidirectional, all
--   layers [layers]: blocks
--   d_model: width of the residual stream
--   seed: seed of its training; none: trained elsewhere
--   model [hidden]: these in one line
--   learned: moves or characters of its training
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   dataset: the positions, and their part
--   of_games: dataset of the positions' games; none: not given
--   n [positions]: evaluated positions
--   n_games [games]: games of these positions
--   unread [positions]: skipped positions, which the model cannot read or which exceed its context
--   best [%]: greedy answers, among all texts, that are the best move; games are resampled
--   legal_best [%]: share of positions whose most probable legal move is the best move
--   valid [%]: greedy answers in the form of a move
--   legal [%]: greedy answers that are a legal move
--   mass [%]: mean exact probability of a legal move
--   nats [nats]: mean cross-entropy of the best move, summed over its tokens
--   nats_token [nats]: the same for each token
--   rank: mean rank of the best move among the legal ones
--   uniform [%]: expected best of a uniform choice among the legal moves
--   run: the move-accuracy run
--   done [games]: completed units
--   planned [games]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   best = percent(best, n)
--   legal_best = percent(legal_best, n)
--   valid = percent(valid, n)
--   legal = percent(legal, n)
--   mass = percent(mass, n)
--   nats = mean(nats, n)
--   nats_token = mean(nats, tokens)
--   rank = mean(ranks, n)
--   uniform = percent(uniform, n)
-- plot: move accuracy by model
--   form: dots
--   x: model
--   y: legal_best
--   series: intervention, dataset, of_games, run
-- plot: cross-entropy by model
--   form: dots
--   x: model
--   y: nats
--   series: intervention, dataset, of_games, run

-- statement: asked
-- Every position of a run, with the settings that decide which positions it asks.
SELECT p.run_id, p.unit, p.attempt_id, p.item, p.text, p.value AS nats, p.ply, p.best, p.legal_best, p.valid, p.legal,
       p.mass, p.rank, p.legal_moves, p.chosen, p.tokens, coalesce(i.intervention, 'none') AS intervention,
       q.dataset AS reference, q.source_games AS games_reference, q.unseen_of, q.positions
FROM move_accuracy_prediction AS p
JOIN move_accuracy_run AS q ON q.run_id = p.run_id
LEFT JOIN interventions AS i ON i.intervention_id = TRY_CAST(p.intervention_id AS UUID)
WHERE p.run_id IN (SELECT run_id FROM scoped)
      AND NOT (p.value IS NULL AND p.log_loss IS NOT NULL) -- of these no best move is known

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, a.run_id) AS cell, a.*, r.run, r.done, r.planned,
       k.checkpoint_id, c.checkpoint, c.tokenizer AS encoding, c.attention, c.layers, c.d_model,
       c.tokens_seen AS learned, t.seed + t.replicate AS seed,
       concat_ws(' ', c.tokenizer, CASE WHEN c.attention <> 'causal' THEN c.attention END,
                 c.layers || 'x' || c.d_model, CASE WHEN t.seed IS NOT NULL THEN 'seed ' || (t.seed + t.replicate)
                 ELSE c.checkpoint END) AS model, coalesce(d.dataset, a.reference) AS dataset,
       coalesce(g.dataset, a.games_reference) AS of_games
FROM asked AS a
JOIN scoped AS r ON r.run_id = a.run_id
JOIN run_checkpoint AS k ON k.run_id = a.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN checkpoint AS m ON m.id = k.checkpoint_id
LEFT JOIN train_run AS t ON t.run_id = m.run_id
LEFT JOIN datasets AS d ON d.reference = a.reference
LEFT JOIN datasets AS g ON g.reference = a.games_reference

-- statement: table
SELECT cell, checkpoint, encoding, attention, layers, d_model, seed, model, learned, intervention, dataset, of_games,
       count(nats) AS n, count(DISTINCT unit) FILTER (nats IS NOT NULL) AS n_games, count(*) - count(nats) AS unread,
       run, done, planned, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT cell, unit, count(*) AS n, sum(best::BIGINT)::BIGINT AS best, sum(legal_best::BIGINT)::BIGINT AS legal_best,
           sum(valid::BIGINT)::BIGINT AS valid, sum(legal::BIGINT)::BIGINT AS legal, sum(exact(mass))::DOUBLE AS mass,
           sum(exact(nats))::DOUBLE AS nats, sum(tokens)::BIGINT AS tokens, sum("rank")::BIGINT AS ranks,
           sum(exact(1 / legal_moves))::DOUBLE AS uniform
    FROM base WHERE nats IS NOT NULL GROUP BY cell, unit
)
SELECT cell, n, best, legal_best, valid, legal, mass, nats, tokens, ranks, uniform, count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS "position", ply, text, best, chosen, legal_best, valid, legal,
       mass, nats, "rank", legal_moves, run_id
FROM base
ORDER BY run_place(run_id), unit, item
