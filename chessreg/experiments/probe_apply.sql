-- title: skill of other games
-- topic: probes
-- question: Which skill does a probe predict for other games?
-- aliases: skill of random openings, karvonen section 4.3, skill estimate, apply probe, skill of games
-- paper: Karvonen 2024, section 4.3
-- kinds: probe-apply
-- needs: EXISTS (SELECT 1 FROM run AS o JOIN probe AS p ON p.run_id = o.id
--       WHERE o.spec_hash = substr(r.spec ->> 'probe', 5, 64) AND p.label LIKE 'skill%')
-- made by: chessreg run probe-apply
-- default: checkpoint, probe, games_of, layer; low, high; n_games
-- columns:
--   checkpoint: the model that reads the games
--   probe: the run of the skill probes
--   games_of: the games: name of their dataset, and part
--   layer: 0-based
--   chosen: highest accuracy on the validation games of the probe's run
--   n_games [games]: evaluated games
--   n [positions]: positions of these games
--   low [%]: positions predicted as the lowest class; games are resampled
--   low_by_vote [%]: games with most positions predicted as the lowest class
--   low_by_mean [%]: games whose mean logit is highest for the lowest class
--   high [%]: positions predicted as the highest class
--   run: the probe-apply run
--   done [layers]: completed units
--   planned [layers]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   low = percent(lowest, positions)
--   low_by_vote = percent(low_vote, games)
--   low_by_mean = percent(low_mean, games)
--   high = percent(highest, positions)
-- plot: skill of other games
--   form: lines
--   x: layer
--   y: low
--   series: checkpoint, games_of, probe, run

-- statement: asked
-- The runs that applied a skill probe, with the run that fitted it and the layer that its validation games choose.
SELECT r.run_id, r.run, r.done, r.planned, r.created_at, coalesce(f.run, 'unknown') AS probe, b.layer AS best_layer,
       coalesce(d.dataset, k.dataset) AS games_of
FROM scoped AS r
JOIN probe_apply_run AS q ON q.run_id = r.run_id
LEFT JOIN runs AS f ON 'run:' || f.spec_hash = q.probe
LEFT JOIN cache_run AS k ON 'run:' || k.spec_hash = q.cache
LEFT JOIN datasets AS d ON d.reference = k.dataset
LEFT JOIN (
    SELECT run_id, arg_max(layer, (right_share, -layer)) AS layer
    FROM (SELECT run_id, layer, sum(correct)::DOUBLE / sum(n)::DOUBLE AS right_share
          FROM score WHERE split = 'validation' AND item >= 0 GROUP BY ALL)
    GROUP BY run_id
) AS b ON b.run_id = f.run_id

-- statement: cells
SELECT p.run_id, p.unit, p.item, p.attempt_id, p.value,
       p.layer,
       p.positions,
       p.lowest,
       p.highest,
       p.vote_class,
       p.mean_class,
       a.run, a.done, a.planned, a.created_at, a.probe, a.best_layer, a.games_of, k.checkpoint_id, c.checkpoint,
       c.place AS checkpoint_place
FROM probe_apply_prediction AS p
JOIN asked AS a ON a.run_id = p.run_id
LEFT JOIN run_checkpoint AS k ON k.run_id = p.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
WHERE starts_with(p.name, 'skill:')

-- statement: base
SELECT dense_rank() OVER (ORDER BY checkpoint_place, games_of, probe, created_at, run_id, layer, unit) AS cell, *
FROM cells

-- statement: table
SELECT cell, checkpoint, probe, games_of, layer, coalesce(layer = best_layer, false) AS chosen, count(*) AS n_games,
       whole(sum(positions)) AS n, run, done, planned, checkpoint_id, run_id
FROM base
GROUP BY ALL
ORDER BY cell

-- statement: clusters
-- A cluster is one game.
SELECT cell, lowest, highest, positions, (vote_class = 0)::BIGINT AS low_vote, (mean_class = 0)::BIGINT AS low_mean,
       1 AS games, count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, item AS game, layer, positions, lowest, highest, vote_class, mean_class,
       run_id
FROM base
ORDER BY run_place(run_id), unit, item
