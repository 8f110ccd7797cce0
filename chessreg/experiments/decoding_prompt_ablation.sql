-- title: prompt ablation
-- topic: legal moves
-- question: How does a list of the legal moves in the prompt change the answers?
-- aliases: prompts, fine-tuned against zero-shot, legal list ablation, legal list, prompt effect
-- paper: Junkin and Nathanson 2025, section 4.3 and the ablation of its six prompts
-- kinds: decoding
-- made by: chessreg run decoding --template NAME, before and after chessreg run finetune
-- default: checkpoint, prompt, legal_list, length; legal, best, tuned_legal; n
-- columns:
--   checkpoint: the model
--   learned [tokens]: tokens with a loss in its training, without the training of its base model
--   tuned_from: checkpoint of its base model
--   prompt: form of the prompt: template, layout, counters, notation of moves
--   legal_list: whether the prompt lists the legal moves
--   dataset: the positions, and their part
--   length: end of an answer: free, where the model ends it; answer, where the right answer ends
--   n [positions]: evaluated positions
--   n_games [games]: games of these positions
--   left_out [positions]: positions whose prompt and answer do not fit the model
--   valid [%]: autoregressive answers in the form of a move; games are resampled
--   legal [%]: answers that are a legal move
--   best [%]: answers that are the best move
--   first [%]: answers that are the legal move listed first
--   tuned_valid [%]: valid minus that of its base model, same prompt, same positions
--   tuned_legal [%]: the same of legal answers
--   tuned_best [%]: the same of best moves
--   list_legal [%]: legal minus that of the first model with the same tuning but no list of legal moves, asked with the
--       prompt of its tuning; layout, counters and notation are those of this prompt
--   list_best [%]: the same of best moves
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
--   tuned_valid = percent_difference(after_valid, before_n, before_valid, before_n)
--   tuned_legal = percent_difference(after_legal, before_n, before_legal, before_n)
--   tuned_best = percent_difference(after_best, before_n, before_best, before_n)
--   list_legal = percent_difference(listed_legal, plain_n, plain_legal, plain_n)
--   list_best = percent_difference(listed_best, plain_n, plain_best, plain_n)
-- plot: prompt ablation
--   form: dots
--   x: prompt
--   y: legal
--   series: checkpoint, dataset, length, run
-- statements of: decoding.sql to answers

-- statement: asked
-- Each run with its model, base model and tuning. `written`: notation of positions and moves, for any template.
-- `as_tuned`: the template is that of the tuning.
SELECT a.run_id, any_value(a.prompt) AS prompt, any_value(a.legal_list) AS legal_list, any_value(a.reference) AS reference,
       any_value(a.positions) AS positions, any_value(a.length) AS length, any_value(a.seed) AS seed,
       any_value(k.checkpoint_id) AS checkpoint_id, any_value(c.checkpoint) AS checkpoint, any_value(c.place) AS place,
       any_value(c.tokens_seen) AS learned, any_value(c.parent_id) AS parent_id,
       any_value(p.checkpoint) AS tuned_from,
       any_value(settings_text(t.spec, ['template', 'last_separator', 'heldout', 'heldout_positions', 'heldout_steps']))
           AS tuning,
       any_value(coalesce(q.template = f.template, q.template IS NULL)) AS as_tuned,
       list_filter(string_split(any_value(a.prompt), ', ')[2:], lambda part: part <> 'last separator') AS written,
       coalesce(any_value(contains(f.template, '{LM}')), any_value(a.legal_list)) AS tuned_on_list,
       any_value(o.place) AS begun
FROM answers AS a
JOIN decoding_run AS q ON q.run_id = a.run_id
JOIN run_order AS o ON o.run_id = a.run_id
JOIN run_checkpoint AS k ON k.run_id = a.run_id
JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN checkpoints AS p ON p.checkpoint_id = c.parent_id
LEFT JOIN checkpoint AS m ON m.id = k.checkpoint_id
LEFT JOIN finetune_run AS f ON f.run_id = m.run_id
LEFT JOIN runs AS t ON t.run_id = f.run_id
GROUP BY a.run_id

-- statement: others
-- For each run the first run of its base model, and the first of the model tuned without a list.
SELECT a.run_id,
       arg_min(b.run_id, b.begun) FILTER (b.checkpoint_id = a.parent_id AND b.prompt = a.prompt) AS before_id,
       arg_min(b.run_id, b.begun) FILTER (b.tuning = a.tuning AND b.written = a.written AND a.legal_list
                                          AND a.tuned_on_list AND NOT b.legal_list AND NOT b.tuned_on_list
                                          AND b.as_tuned) AS plain_id
FROM asked AS a
LEFT JOIN asked AS b ON b.reference = a.reference AND b.positions = a.positions AND b.length = a.length AND b.seed = a.seed
GROUP BY a.run_id

-- statement: base
SELECT dense_rank() OVER (ORDER BY q.place, r.created_at, a.run_id) AS cell, a.*, r.run, r.done, r.planned,
       q.checkpoint_id, q.checkpoint, q.learned, q.tuned_from, coalesce(d.dataset, a.reference) AS dataset,
       b.valid AS before_valid, b.legal AS before_legal, b.best AS before_best, p.legal AS plain_legal,
       p.best AS plain_best
FROM answers AS a
JOIN scoped AS r ON r.run_id = a.run_id
JOIN asked AS q ON q.run_id = a.run_id
JOIN others AS o ON o.run_id = a.run_id
LEFT JOIN datasets AS d ON d.reference = a.reference
LEFT JOIN answers AS b ON b.run_id = o.before_id AND b.unit = a.unit AND b.mode = a.mode AND b.best IS NOT NULL
LEFT JOIN answers AS p ON p.run_id = o.plain_id AND p.unit = a.unit AND p.mode = a.mode AND p.best IS NOT NULL
WHERE a.mode = 'autoregressive'

-- statement: table
SELECT cell, checkpoint, learned, tuned_from, prompt, legal_list, dataset, length, count(best) AS n,
       count(DISTINCT game) FILTER (best IS NOT NULL) AS n_games, count(*) - count(best) AS left_out, run, done, planned,
       checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
-- A cluster is one game. Differences are over the positions that both models were asked.
WITH summed AS (
    SELECT cell, game, count(*) AS n, sum(valid::BIGINT)::BIGINT AS valid, sum(legal::BIGINT)::BIGINT AS legal,
           sum(best)::BIGINT AS best, sum("first"::BIGINT)::BIGINT AS "first",
           sum(before_valid::BIGINT)::BIGINT AS before_valid, sum(before_legal::BIGINT)::BIGINT AS before_legal,
           sum(before_best)::BIGINT AS before_best, nullif(count(before_best), 0) AS before_n,
           sum(valid::BIGINT) FILTER (before_best IS NOT NULL)::BIGINT AS after_valid,
           sum(legal::BIGINT) FILTER (before_best IS NOT NULL)::BIGINT AS after_legal,
           sum(best) FILTER (before_best IS NOT NULL)::BIGINT AS after_best,
           sum(plain_legal::BIGINT)::BIGINT AS plain_legal, sum(plain_best)::BIGINT AS plain_best,
           sum(legal::BIGINT) FILTER (plain_best IS NOT NULL)::BIGINT AS listed_legal,
           sum(best) FILTER (plain_best IS NOT NULL)::BIGINT AS listed_best, nullif(count(plain_best), 0) AS plain_n
    FROM base WHERE best IS NOT NULL GROUP BY cell, game
)
SELECT cell, n, valid, legal, best, "first", before_valid, before_legal, before_best, before_n, after_valid, after_legal,
       after_best, plain_legal, plain_best, plain_n, listed_legal, listed_best, count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS "position", text, best, valid, legal, "first", before_best,
       plain_best, run_id
FROM base
ORDER BY run_place(run_id), unit
