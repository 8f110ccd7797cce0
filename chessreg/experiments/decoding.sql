-- title: decoding modes
-- topic: legal moves
-- question: How do greedy, sampled and constrained decoding compare?
-- aliases: teacher-forced against autoregressive, exposure bias, sampling, greedy decoding, finetuned llms,
--       fine-tuned language models, llm, temperature
-- paper: Junkin and Nathanson 2025, Appendices C and D.5
-- kinds: decoding
-- made by: chessreg run decoding
-- default: checkpoint, prompt, dataset, mode; legal, best; n
-- columns:
--   checkpoint: the model
--   learned [tokens]: tokens with a loss in its training, without the training of its base model
--   prompt: form of the prompt: template, layout, counters, notation of moves
--   legal_list: whether the prompt lists the legal moves
--   dataset: the positions, and their part
--   length: end of an autoregressive answer: free, where the model ends it; answer, where the right answer ends
--   mode: teacher-forced, each token follows the right earlier tokens; autoregressive, it follows the model's own
--   n [positions]: evaluated positions
--   n_games [games]: games of these positions
--   left_out [positions]: positions whose prompt and answer do not fit the model
--   valid [%]: answers in the form of a move; games are resampled
--   legal [%]: answers that are a legal move
--   best [%]: answers that are the best move
--   first [%]: answers that are the legal move listed first
--   near [%]: answers that differ from the best move in at most one character
--   nats [nats]: teacher-forced mean cross-entropy of the best move, summed over its tokens and its end
--   delta_valid [%]: autoregressive minus teacher-forced, same positions
--   delta_legal [%]: the same of legal answers
--   delta_best [%]: the same of best moves
--   run: the decoding run
--   done [positions]: completed units
--   planned [positions]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   valid = percent(valid, n)
--   legal = percent(legal, n)
--   best = percent(best, n)
--   first = percent(first, n)
--   near = percent(near, n)
--   nats = mean(nats, told)
--   delta_valid = percent_difference(valid, n, told_valid, told_n)
--   delta_legal = percent_difference(legal, n, told_legal, told_n)
--   delta_best = percent_difference(best, n, told_best, told_n)
-- plot: decoding modes
--   form: bars
--   x: mode
--   y: best
--   series: checkpoint, prompt, dataset, length, run

-- statement: answers
-- Every answer, with the settings that decide which positions a run asks, and its game (unknown: the answer itself).
SELECT p.run_id, p.unit, p.attempt_id, p.item, p.name AS mode, p.text, p.value AS best, p.prompt, p.legal_list,
       coalesce(p.game, 'position ' || p.item) AS game, p.valid, p.legal, p."first", p.near, p.nats, p.tokens,
       q.dataset AS reference, q.positions, q.length, q.seed
FROM decoding_prediction AS p
JOIN decoding_run AS q ON q.run_id = p.run_id
WHERE p.run_id IN (SELECT run_id FROM scoped) AND p.name IN ('teacher-forced', 'autoregressive')

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, a.run_id, a.mode DESC) AS cell, a.*, r.run, r.done,
       r.planned, k.checkpoint_id, c.checkpoint, c.tokens_seen AS learned, coalesce(d.dataset, a.reference) AS dataset,
       t.valid AS told_valid, t.legal AS told_legal, t.best AS told_best
FROM answers AS a
JOIN scoped AS r ON r.run_id = a.run_id
JOIN run_checkpoint AS k ON k.run_id = a.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN datasets AS d ON d.reference = a.reference
LEFT JOIN answers AS t ON t.run_id = a.run_id AND t.unit = a.unit AND t.mode = 'teacher-forced'
    AND a.mode = 'autoregressive'

-- statement: table
SELECT cell, checkpoint, learned, prompt, legal_list, dataset, length, mode, count(best) AS n,
       count(DISTINCT game) FILTER (best IS NOT NULL) AS n_games, count(*) - count(best) AS left_out, run, done, planned,
       checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT cell, game, count(*) AS n, sum(valid::BIGINT)::BIGINT AS valid, sum(legal::BIGINT)::BIGINT AS legal,
           sum(best)::BIGINT AS best, sum("first"::BIGINT)::BIGINT AS "first", sum(near::BIGINT)::BIGINT AS near,
           coalesce(sum(exact(nats)), 0)::DOUBLE AS nats, count(nats) AS told, sum(told_valid::BIGINT)::BIGINT AS told_valid,
           sum(told_legal::BIGINT)::BIGINT AS told_legal, sum(told_best)::BIGINT AS told_best,
           nullif(count(told_best), 0) AS told_n
    FROM base WHERE best IS NOT NULL GROUP BY cell, game
)
SELECT cell, n, valid, legal, best, "first", near, nats, told, told_valid, told_legal, told_best, told_n,
       count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS "position", mode, text, best, valid, legal, "first", near, nats,
       run_id
FROM base
ORDER BY run_place(run_id), unit, mode DESC
