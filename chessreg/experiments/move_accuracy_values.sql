-- title: value prediction by model
-- topic: language modelling
-- question: How well does each model predict the values of positions and of their legal moves?
-- aliases: action accuracy, kendall tau, win probability error, action values, state values, log loss in bits,
--       searchless chess, chessbench metrics
-- paper: Ruoss et al. 2024, Appendix A
-- kinds: move-accuracy
-- made by: chessreg run move-accuracy --dataset BAG, whose positions have the win probability of every legal move, or their own
-- default: checkpoint, dataset; top, tau, log_loss, l2; n
-- columns:
--   checkpoint: the model
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   dataset: the positions, and their part
--   n [positions]: evaluated positions
--   top [%]: action accuracy: the model's first legal move has the highest win probability
--   tau: mean of Kendall's τ-b between the model's order of the legal moves and that of their win probabilities
--   tau_argsort: the same of the permutations that sort the moves, which DeepMind's code reports
--   log_loss [bits]: mean log loss of the return buckets, or of the best move where a model predicts moves
--   entropy [bits]: mean entropy of the predicted distributions
--   l2: mean squared error of win probabilities, of a model of values
--   consistency: mean squared difference of the returns of a state and of its best move, of a model of state values
--   run: the move-accuracy run
--   done [games]: completed units
--   planned [games]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   top = percent(top, ordered)
--   tau = mean(tau, ordered)
--   tau_argsort = mean(tau_argsort, ordered)
--   log_loss = mean(log_loss, n)
--   entropy = mean(entropy, n)
--   l2 = mean(l2, valued)
--   consistency = mean(consistency, states)
-- plot: value prediction by model
--   form: bars
--   x: checkpoint
--   y: top
--   series: intervention, dataset, run

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, p.run_id) AS cell, r.run, r.done, r.planned, p.run_id, p.unit,
       p.attempt_id, k.checkpoint_id, c.checkpoint, coalesce(i.intervention, 'none') AS intervention,
       coalesce(d.dataset, q.dataset) AS dataset, p.item, p.best_uci, p.chosen, p.top, p.log_loss, p.entropy, p.tau,
       p.tau_argsort, p.l2, p.consistency
FROM move_accuracy_prediction AS p
JOIN scoped AS r ON r.run_id = p.run_id
JOIN move_accuracy_run AS q ON q.run_id = p.run_id
JOIN run_checkpoint AS k ON k.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN datasets AS d ON d.reference = q.dataset
LEFT JOIN interventions AS i ON i.intervention_id = TRY_CAST(p.intervention_id AS UUID)
WHERE p.log_loss IS NOT NULL

-- statement: table
SELECT cell, checkpoint, intervention, dataset, count(*) AS n, run, done, planned, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
-- A cluster is one game, or one position where games are not known.
WITH summed AS (
    SELECT cell, unit, count(*) AS n, count(top) AS ordered, coalesce(sum(top::BIGINT), 0)::BIGINT AS top,
           coalesce(sum(exact(tau)), 0)::DOUBLE AS tau, coalesce(sum(exact(tau_argsort)), 0)::DOUBLE AS tau_argsort, sum(exact(log_loss))::DOUBLE AS log_loss,
           sum(exact(entropy))::DOUBLE AS entropy, coalesce(sum(exact(l2)), 0)::DOUBLE AS l2, count(l2) AS valued,
           coalesce(sum(exact(consistency)), 0)::DOUBLE AS consistency, count(consistency) AS states
    FROM base GROUP BY cell, unit
)
SELECT cell, n, ordered, top, tau, tau_argsort, log_loss, entropy, l2, valued, consistency, states, count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS "position", best_uci, chosen, top, tau, log_loss, entropy, l2,
       consistency, run_id
FROM base
ORDER BY run_place(run_id), unit, item
