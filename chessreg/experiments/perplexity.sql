-- title: perplexity
-- topic: language modelling
-- question: How large is the model's perplexity per token and per ply?
-- aliases: perplexity per ply, canonical perplexity, davis table 2, ppl, loss per token, cross entropy
-- paper: Davis 2026, Table 2; conventions of Toshniwal et al. 2022
-- kinds: perplexity
-- made by: chessreg run perplexity
-- default: checkpoint, dataset; ppl_token, ppl_ply, nll_ply; n_games, plies
-- columns:
--   checkpoint: the model
--   encoding: the model's encoding of chess
--   dataset: the games, and their part
--   end_token: whether the model predicts the end of a game too
--   n_games [games]: games that fit the model's context
--   too_long [games]: skipped games, which do not fit the context
--   tokens [tokens]: predicted tokens
--   plies [plies]: plies of these games, with end_token one more for each game
--   ppl_token: exp of the mean negative log-likelihood of a token, with its interval; games are resampled
--   ppl_ply: exp of the total divided by the plies: comparable between encodings
--   nll_ply [nats]: its logarithm
--   run: the perplexity run
--   done [games]: completed units
--   planned [games]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   ppl_token = exp_mean(nll, tokens)
--   ppl_ply = exp_mean(nll, plies)
--   nll_ply = mean(nll, plies)
-- plot: perplexity
--   form: dots
--   x: checkpoint
--   y: ppl_ply
--   series: dataset, end_token, run

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, p.run_id) AS cell, p.run_id, p.unit, p.attempt_id, p.item,
       p.value AS nll, p.tokens, p.plies, q.end_token, r.run, r.done, r.planned, k.checkpoint_id, c.checkpoint,
       t.tokenizer AS encoding, coalesce(d.dataset, q.dataset) AS dataset
FROM perplexity_prediction AS p
JOIN scoped AS r ON r.run_id = p.run_id AND r.kind = 'perplexity'
JOIN perplexity_run AS q ON q.run_id = p.run_id
JOIN run_checkpoint AS k ON k.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN checkpoint AS t ON t.id = k.checkpoint_id
LEFT JOIN datasets AS d ON d.reference = q.dataset

-- statement: table
SELECT cell, checkpoint, encoding, dataset, end_token, count(nll) AS n_games, count(*) - count(nll) AS too_long,
       coalesce(sum(tokens) FILTER (nll IS NOT NULL), 0)::BIGINT AS tokens,
       coalesce(sum(plies) FILTER (nll IS NOT NULL), 0)::BIGINT AS plies, run, done, planned, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
SELECT cell, nll, tokens, plies, count(*) AS clusters
FROM base
WHERE nll IS NOT NULL
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run, unit, item AS game, nll, tokens, plies, run_id
FROM base
ORDER BY run_place(run_id), unit
