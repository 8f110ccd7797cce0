-- title: edit distance of answers
-- topic: legal moves
-- question: How far are sampled answers from the greedy answer to the same position?
-- aliases: edit distance, edit-distance, junkin edit distance, levenshtein, contamination of training positions
-- paper: Junkin and Nathanson 2025: a figure of the author's repository, of training and of test positions
-- kinds: decoding
-- needs: CAST(r.spec ->> 'samples' AS INTEGER) > 0
-- made by: chessreg run decoding --samples 20, once for positions of the training and once for others
-- default: checkpoint, prompt, dataset, distance; share; samples, n
-- columns:
--   checkpoint: the model
--   prompt: form of the prompt: template, layout, counters, notation of moves
--   dataset: the positions, and their part
--   temperature: temperature of the samples
--   top_p: share of the probability that samples come from
--   distance [tokens]: insertions, deletions and substitutions between a sample and the greedy answer
--   share [%]: share of all samples; games are resampled
--   samples [samples]: samples at this distance
--   n [positions]: evaluated positions
--   n_games [games]: games of these positions
--   run: the decoding run
--   done [positions]: completed units
--   planned [positions]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   share = percent(hits, every)
-- plot: edit distance of answers
--   form: bars
--   x: distance
--   y: share
--   series: checkpoint, prompt, dataset, run

-- statement: sampled
SELECT p.run_id, p.unit, p.attempt_id, p.item, p.text, TRY_CAST(split_part(p.name, ' ', 2) AS BIGINT) AS distance,
       whole(p.value) AS samples, p.prompt, coalesce(p.game, 'position ' || p.item) AS game
FROM decoding_prediction AS p
WHERE p.run_id IN (SELECT run_id FROM scoped) AND starts_with(p.name, 'distance ')

-- statement: base
-- Every position at every distance of its run: the samples at this distance, and all samples.
SELECT dense_rank() OVER (ORDER BY c.place, r.created_at, b.run_id, m.distance) AS cell, b.*, m.distance,
       coalesce(s.samples, 0) AS samples, r.run, r.done, r.planned, k.checkpoint_id, c.checkpoint,
       coalesce(d.dataset, q.dataset) AS dataset, q.temperature, q.top_p
FROM (SELECT run_id, unit, attempt_id, item, text, prompt, game, sum(samples)::BIGINT AS "every"
      FROM sampled GROUP BY ALL) AS b
JOIN (SELECT DISTINCT run_id, distance FROM sampled) AS m ON m.run_id = b.run_id
LEFT JOIN sampled AS s ON s.run_id = b.run_id AND s.unit = b.unit AND s.distance = m.distance
JOIN scoped AS r ON r.run_id = b.run_id
JOIN decoding_run AS q ON q.run_id = b.run_id
JOIN run_checkpoint AS k ON k.run_id = b.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN datasets AS d ON d.reference = q.dataset

-- statement: table
SELECT cell, checkpoint, prompt, dataset, temperature, top_p, distance, sum(samples)::BIGINT AS samples, count(*) AS n,
       count(DISTINCT game) AS n_games, run, done, planned, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT cell, game, sum(samples)::BIGINT AS hits, sum("every")::BIGINT AS "every" FROM base GROUP BY cell, game
)
SELECT cell, hits, "every", count(*) AS clusters
FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS "position", text, distance, samples, "every", run_id
FROM base
WHERE samples > 0
ORDER BY run_place(run_id), unit, distance
