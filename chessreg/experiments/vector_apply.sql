-- title: accuracy along vectors
-- topic: steering vectors
-- question: How well does projecting onto a vector separate the classes?
-- aliases: vector accuracy, accuracy along a direction, projection, separation
-- paper: none: a test of the skill vectors of Karvonen 2024, section 4, that the paper does not make
-- kinds: vector-apply
-- made by: chessreg run vector-apply
-- default: checkpoint, vector, games_of, layer; accuracy, minus_majority; n_games
-- columns:
--   checkpoint: the model
--   vector: the run of the directions
--   source: source of the directions; random and shuffled are controls
--   stands_for: the run whose vectors the control replaces
--   games_of: the games: name of their dataset, and part
--   strata: grouping within which games were put into classes
--   layer: 0-based
--   n_games [games]: games of weak and of strong players
--   accuracy [%]: games on the right side of the midpoint between the classes; games are resampled
--   majority [%]: accuracy of always predicting the more frequent class
--   minus_majority [%]: accuracy minus majority, same games
--   separation: difference of the classes' mean projections, in standard deviations within them
--   run: the vector-apply run
--   done [layers]: completed units
--   planned [layers]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   accuracy = percent(correct, n)
--   majority = percent(majority, n)
--   minus_majority = percent_difference(correct, n, majority, n)
-- plot: accuracy along vectors
--   form: lines
--   x: layer
--   y: accuracy
--   baseline: majority
--   series: checkpoint, source, vector, games_of, run
--   panels: strata

-- statement: cells
SELECT r.run_id, r.run, r.done, r.planned, r.created_at, coalesce(v.run, 'unknown') AS vector, v.run_id AS vector_id,
       f.run AS stands_for, w.seed, coalesce(d.dataset, k.dataset) AS games_of, g.strata, c.checkpoint_id,
       c.checkpoint, c.place AS checkpoint_place
FROM scoped AS r
JOIN vector_apply_run AS q ON q.run_id = r.run_id
LEFT JOIN skill_strata AS g ON g.run_id = r.run_id
LEFT JOIN runs AS v ON 'run:' || v.spec_hash = q.vector
LEFT JOIN vector_run AS w ON w.run_id = v.run_id
LEFT JOIN runs AS f ON 'run:' || f.spec_hash = w."of"
LEFT JOIN cache_run AS k ON 'run:' || k.spec_hash = q.cache
LEFT JOIN datasets AS d ON d.reference = k.dataset
LEFT JOIN run_checkpoint AS i ON i.run_id = r.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = i.checkpoint_id

-- statement: base
SELECT dense_rank() OVER (ORDER BY c.checkpoint_place, c.games_of, coalesce(c.stands_for, c.vector), c.stands_for IS NOT NULL,
                                   c.seed, c.vector, c.created_at, s.run_id, s.layer, s.unit) AS cell,
       s.run_id, s.unit, s.attempt_id, s.item, s.layer, s.n, s.correct, s.game_class, s.projection, c.* EXCLUDE (run_id),
       (SELECT any_value(v.source) FROM vector AS v WHERE v.run_id = c.vector_id) AS source,
       avg(s.game_class) OVER (PARTITION BY s.run_id, s.unit) > 0.5 AS mostly_strong
FROM vector_apply_score AS s JOIN cells AS c ON c.run_id = s.run_id

-- statement: table
SELECT cell, checkpoint, vector, source, stands_for, games_of, strata, layer, count(*) AS n_games,
       (avg(projection) FILTER (game_class = 1) - avg(projection) FILTER (game_class = 0))
           / nullif(sqrt((var_pop(projection) FILTER (game_class = 1) + var_pop(projection) FILTER (game_class = 0)) / 2), 0)
           AS separation,
       run, done, planned, checkpoint_id, run_id
FROM base
GROUP BY cell, checkpoint, vector, source, stands_for, games_of, strata, layer, run, done, planned, checkpoint_id, run_id
ORDER BY cell

-- statement: clusters
-- A cluster is one game.
SELECT cell, correct, ((game_class = 1) = mostly_strong)::BIGINT AS majority, n, count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run, unit, item AS game, layer, game_class, projection, correct, run_id
FROM base
ORDER BY run_place(run_id), unit, item
