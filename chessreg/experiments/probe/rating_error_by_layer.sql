-- title: rating error by layer
-- topic: probes
-- question: How large is the error of the rating that a probe predicts?
-- aliases: rating error, skill regression, karvonen section 3.2, skill probe, elo probe, rating probe, mean absolute
--       error, skill probes, does the model know the elo of the players
-- paper: Karvonen 2024, section 3.2
-- kinds: probe
-- needs: EXISTS (SELECT 1 FROM probe AS p WHERE p.run_id = r.id AND p.label IN ('rating', 'rating-shuffled'))
-- made by: chessreg run probe
-- default: checkpoint, twin_of, rating, layer, split; error, majority_error, less_than_majority; n_games
-- columns:
--   checkpoint: the probed model
--   twin_of: the model whose untrained twin this is
--   rating: side whose rating the probe predicts; shuffled: a probe fitted to permuted ratings
--   layer: 0-based
--   split: validation or test
--   chosen: smallest error on the validation games among the layers of its run
--   n_games [games]: games scored
--   n [predictions]: positions scored
--   error [Elo]: mean absolute error of a position, with its interval; games are resampled
--   majority_error [Elo]: error of always predicting the mean rating of the fitting games
--   length_error [Elo]: error of predicting from the length of the game
--   source_error [Elo]: error of predicting from source and time control
--   less_than_majority [Elo]: error minus majority_error, same games; below 0 the probe is better
--   run: the probe run
--   done [units]: completed units
--   planned [units]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   error = mean(absolute, positions)
--   majority_error = mean(majority, positions)
--   length_error = mean(length, positions)
--   source_error = mean(source, positions)
--   less_than_majority = mean_difference(absolute, positions, majority, positions)
-- plot: rating error by layer
--   form: lines
--   x: layer
--   y: error
--   baseline: majority_error
--   series: checkpoint, run
--   where: split = 'test'

-- statement: cells
SELECT p.run_id, p.unit, p.layer, p.label, p.checkpoint_id, c.checkpoint,
       CASE WHEN c.random_init THEN coalesce(parent.checkpoint, right(replace(c.parent_id::VARCHAR, '-', ''), 6)) END
           AS twin_of,
       coalesce(parent.place, c.place) AS family, c.place AS checkpoint_place, r.run, r.done, r.planned, r.created_at
FROM probe AS p
JOIN scoped AS r ON r.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id
LEFT JOIN checkpoints AS parent ON c.random_init AND parent.checkpoint_id = c.parent_id
WHERE p.label IN ('rating', 'rating-shuffled')

-- statement: read
-- One row per game and layer: the sum of absolute errors over its positions, of the probe and of the baselines.
SELECT k.*, p.item, p.attempt_id, p.value, string_split(p.name, ':')[1] AS split, string_split(p.name, ':')[2] || CASE WHEN k.label = 'rating' THEN '' ELSE ' shuffled' END AS rating,
       p.positions,
       p.elo,
       p.absolute_error AS absolute,
       p.majority_error AS majority,
       p.length_error AS length,
       p.source_error AS source
FROM cells AS k JOIN probe_prediction AS p ON p.run_id = k.run_id AND p.unit = k.unit

-- statement: base
SELECT dense_rank() OVER (ORDER BY family, twin_of IS NOT NULL, checkpoint_place, created_at, run_id, rating,
                                   split, layer, unit) AS cell, *
FROM read

-- statement: table
WITH layered AS (
    SELECT cell, any_value(checkpoint) AS checkpoint, any_value(twin_of) AS twin_of, any_value(rating) AS rating,
           any_value(layer) AS layer, any_value(split) AS split, any_value(unit) AS unit, count(*) AS n_games,
           whole(sum(positions)) AS n,
           sum(TRY_CAST(absolute AS DECIMAL(18, 6)))::DOUBLE / sum(positions)::DOUBLE AS mean_error,
           any_value(run) AS run, any_value(done) AS done, any_value(planned) AS planned,
           any_value(checkpoint_id) AS checkpoint_id, any_value(run_id) AS run_id
    FROM base
    GROUP BY cell
),
best AS (
    SELECT run_id, rating, arg_min(unit, (mean_error, layer)) AS unit
    FROM layered WHERE split = 'validation' GROUP BY ALL
)
SELECT l.cell, l.checkpoint, l.twin_of, l.rating, l.layer, l.split, coalesce(l.unit = b.unit, false) AS chosen, l.n_games, l.n,
       l.run, l.done, l.planned, l.checkpoint_id, l.run_id
FROM layered AS l LEFT JOIN best AS b ON b.run_id = l.run_id AND b.rating = l.rating
ORDER BY l.cell

-- statement: clusters
-- A cluster is one game.
SELECT cell, round(absolute, 6) AS absolute, positions, round(majority * positions, 6) AS majority,
       round(length * positions, 6) AS length, round(source * positions, 6) AS source, count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run, unit, split, item AS game, layer, rating, elo, value AS read_as, absolute / positions AS absolute_error, positions,
       run_id
FROM base
ORDER BY run_place(run_id), unit, split, item
