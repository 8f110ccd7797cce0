-- title: probe accuracy by layer
-- topic: probes
-- question: How accurately does a probe predict the label at each layer?
-- aliases: probe accuracy, read the board, board represented,
--       world model, probes, karvonen figure 3, linear probe, linear probes, board probe, board state probe,
--       layer accuracy, probes, board probe accuracy, piece probes, error bars of probe accuracy
-- paper: Karvonen 2024, Figure 3
-- kinds: probe
-- made by: chessreg run probe
-- default: checkpoint, twin_of, label, positions, layer, split; accuracy, majority; n_games
-- columns:
--   checkpoint: the probed model
--   twin_of: the model whose untrained twin this is
--   label: the label that the probe predicts from the residual stream
--   positions: characters at which the probe reads the residual stream
--   hook_point [hidden]: hook point of the activations
--   layer: 0-based; the paper counts from 1
--   split: validation (held out of fitting, used to choose) or test
--   n_games [games]: games scored
--   n [predictions]: squares (or positions) scored
--   accuracy [%]: right predictions, with its interval; games are resampled
--   majority [%]: accuracy of always predicting the most frequent class of the fitting games
--   boards [%]: positions with every square right
--   unseen [%]: right predictions in positions that do not occur in the fitting games
--   by_game [%]: for skill: games whose class is the majority vote of their positions
--   source [%]: for skill: accuracy of predicting from source and time control alone
--   length [%]: for skill: accuracy of predicting from the length of the game alone
--   chosen: highest accuracy on the validation games among the layers of its run
--   layers_tried [layers]: number of layers that were compared
--   overlap: whole games among those of all its splits that the model was trained on, and that the probe was fitted on
--   overlap_model_games [hidden]: number of these games; none: unknown
--   overlap_model_openings [hidden]: games whose first 20 plies the model was trained on
--   overlap_model_positions [hidden]: number of different positions that it was trained on
--   overlap_probe_games [hidden]: games that the probe was fitted on
--   overlap_probe_openings [hidden]: games whose first 20 plies it was fitted on
--   overlap_probe_positions [hidden]: number of different positions that it was fitted on
--   train_games [games]: games fitted on
--   epochs: passes over the fitting games
--   run: the probe run
--   done [units]: completed units
--   planned [units]: units of the run
--   model [hidden]: the model, or the model of the untrained twins
--   fit [hidden]: fit 1, fit 2, …; runs with the same number differ in seed and model alone
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   accuracy = percent(correct, n)
--   majority = percent(majority, majority_n)
--   boards = percent(exact, positions)
--   unseen = percent(unseen_correct, unseen_n)
--   by_game = percent(by_vote, classed)
--   source = percent(by_source, source_n)
--   length = percent(by_length, length_n)
-- plot: probe accuracy by layer
--   aliases: karvonen figure 3, figure 3
--   form: lines
--   x: layer
--   y: accuracy
--   baseline: majority
--   series: model, fit
--   spread: run
--   panels: label, positions
--   where: split = 'test'

-- statement: cells
-- One row per probe and split. Each run is a separate cell: nothing is pooled over settings or seeds.
SELECT p.run_id, p.unit, s.split, s.correct, s.n, p.checkpoint_id, c.checkpoint,
       CASE WHEN c.random_init THEN coalesce(parent.checkpoint, right(replace(c.parent_id::VARCHAR, '-', ''), 6)) END
           AS twin_of,
       coalesce(parent.place, c.place) AS family, c.place AS checkpoint_place, p.label, p.positions,
       p.hook_point, p.layer,
       p.train_games, p.epochs::BIGINT AS epochs, r.run, r.done, r.planned, r.created_at,
       concat_ws('; ', settings_text(r.spec, ['seed', 'replicate', 'cache', 'test_cache', 'layers']), u.settings)
           AS settings
FROM probe AS p
JOIN scoped AS r ON r.run_id = p.run_id
LEFT JOIN probe_caches AS u ON u.run_id = p.run_id
JOIN (SELECT run_id, unit, split, sum(correct)::DOUBLE AS correct, sum(n)::DOUBLE AS n
      FROM score WHERE item >= 0 GROUP BY ALL) AS s ON s.run_id = p.run_id AND s.unit = p.unit
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id
LEFT JOIN checkpoints AS parent ON c.random_init AND parent.checkpoint_id = c.parent_id

-- statement: numbered
SELECT *, coalesce(twin_of || ', untrained', checkpoint) AS model,
       'fit ' || dense_rank() OVER (PARTITION BY label, positions ORDER BY settings) AS fit,
       dense_rank() OVER (ORDER BY label, positions, family, twin_of IS NOT NULL, checkpoint_place,
                                   created_at, run_id, split, layer, hook_point, unit) AS cell,
       unit = first_value(unit) OVER (PARTITION BY run_id ORDER BY CASE WHEN split = 'validation' THEN correct / n END
                                      DESC NULLS LAST, layer, unit)
           AND count(*) FILTER (split = 'validation') OVER (PARTITION BY run_id) > 0 AS chosen,
       count(*) FILTER (split = 'validation') OVER (PARTITION BY run_id) AS layers_tried
FROM cells

-- statement: base
SELECT k.cell, s.run_id, s.unit, s.attempt_id, s.split, s.item, s.layer, s.n, s.correct,
       coalesce(s.majority,
                s.n * (s.majority_class
                       = s.game_class)::BIGINT) AS majority,
       s.unseen_correct AS unseen_correct,
       s.unseen * s.n
           // nullif(s.positions, 0) AS unseen_n,
       (s.vote_class = s.game_class)::BIGINT AS by_vote,
       s.n * (s.source_class
              = s.game_class)::BIGINT AS by_source,
       s.n * (s.length_class
              = s.game_class)::BIGINT AS by_length,
       s.exact AS exact,
       s.positions AS positions,
       k.run, k.checkpoint_id, k.checkpoint, k.label, k.hook_point
FROM probe_score AS s JOIN numbered AS k ON k.run_id = s.run_id AND k.unit = s.unit AND k.split = s.split
WHERE s.item >= 0

-- statement: table
SELECT b.cell, k.checkpoint, k.twin_of, k.label, k.positions, k.hook_point, k.layer, k.split,
       count(*) AS n_games, whole(sum(b.n)) AS n, k.chosen, k.layers_tried, o.overlap, o.model_games AS overlap_model_games, o.model_openings AS overlap_model_openings,
       o.model_positions AS overlap_model_positions, o.probe_games AS overlap_probe_games,
       o.probe_openings AS overlap_probe_openings, o.probe_positions AS overlap_probe_positions, k.train_games,
       k.epochs, k.run, k.done, k.planned, k.model, k.fit, k.checkpoint_id, k.run_id
FROM base AS b JOIN numbered AS k ON k.cell = b.cell LEFT JOIN shared_games AS o ON o.run_id = k.run_id
GROUP BY ALL
ORDER BY b.cell

-- statement: clusters
-- A cluster is one game.
SELECT cell, correct, n, majority, CASE WHEN majority IS NOT NULL THEN n END AS majority_n, exact,
       CASE WHEN exact IS NOT NULL THEN positions END AS positions, unseen_correct,
       CASE WHEN unseen_correct IS NOT NULL THEN unseen_n END AS unseen_n, by_vote,
       CASE WHEN by_vote IS NOT NULL THEN 1 END AS classed, by_source,
       CASE WHEN by_source IS NOT NULL THEN n END AS source_n, by_length,
       CASE WHEN by_length IS NOT NULL THEN n END AS length_n, count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, split, item AS game, layer, n, correct, majority, exact, positions, label, run_id
FROM base
ORDER BY run_place(run_id), unit, split, item
