-- title: causes of no skill effect
-- topic: play
-- question: Why might a skill vector show no effect in play?
-- aliases: skill causes, causes, why no skill effect, no effect
-- paper: none: beyond Karvonen 2024, section 4.3
-- kinds: probe, probe-apply, play
-- needs: EXISTS (SELECT 1 FROM probe AS p WHERE p.label IN ('skill', 'skill-shuffled'))
--       OR EXISTS (SELECT 1 FROM vector AS v WHERE v.source LIKE '%skill%')
-- made by: chessreg run probe --label skill
-- default: checkpoint, cause, measured, layer; share, minus_baseline, score; n
-- columns:
--   checkpoint: the model
--   cause: possible cause if an edit of skill has no effect: 1 source (probes and vectors read the source of the games),
--       2 level (the model plays at one level, below that of the labels), 3 opponent (it leaves no room for an effect)
--   measured: meaning of share or score
--   of: the probes (label, classes within each source and time control, balanced over them or pooled), the games that
--       were read, or the match
--   labels [Elo]: bounds of the classes: the edges nearest to the middle, from the lowest to the highest of any stratum
--   share [%]: 1 skill read right off test games, 2 games read as the lowest class; games are resampled
--   baseline [%]: 1 right by source and time control alone, 2 test games read as the lowest class
--   minus_baseline [%]: 1 share minus baseline, same games; the cause stands if it reaches 0, or the value of shuffled
--       labels
--   score: 3 points per game of the unedited model; openings are resampled, or games from the standard position
--   says: of causes 2 and 3, whether this row alone confirms the cause: over 90 % read as the lowest class; score below 0.2 or
--       above 0.8
--   layer: of probes: the one that validation chooses; of several runs the lowest of theirs
--   n [games]: games
--   adjudicated [games]: 3: stopped and decided by the engine's evaluation
--   runs: the runs
--   warning [hidden]: that games without a result are scored by Stockfish's evaluation, and that by several engines
--   checkpoint_id [hidden]: its id
-- statistics:
--   share = percent(hits, counted)
--   baseline = percent(base_hits, base_counted)
--   minus_baseline = percent_difference(hits, counted, paired_hits, paired_counted)
--   score = score(points, scored)

-- statement: fitted
-- Every skill probe, at the layer with the largest validation share.
SELECT p.run_id, p.unit, p.layer, p.checkpoint_id, c.checkpoint, c.place, s.run, k.labels, u.test_settings,
       p.label || ', ' || k.strata || CASE WHEN q.batch_games IS NULL THEN '' ELSE ', whole games' END AS of_probe
FROM probe AS p
JOIN runs AS s ON s.run_id = p.run_id
JOIN probe_run AS q ON q.run_id = p.run_id
JOIN probe_caches AS u ON u.run_id = p.run_id
JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id AND NOT coalesce(c.random_init, false)
JOIN skill_classes AS k ON k.run_id = p.run_id
JOIN (
    SELECT run_id, arg_max(layer, (right_share, -layer)) AS layer
    FROM (SELECT run_id, layer, sum(correct)::DOUBLE / sum(n)::DOUBLE AS right_share
          FROM score WHERE split = 'validation' AND item >= 0 GROUP BY ALL)
    GROUP BY run_id
) AS b ON b.run_id = p.run_id AND b.layer = p.layer
WHERE p.label IN ('skill', 'skill-shuffled')

-- statement: measured
-- One row per game: its hits, the count that they are a share of, and the same for its baseline. `item` numbers the games
-- or openings of `among`.
SELECT f.checkpoint_id, f.checkpoint, f.place, '1 source' AS cause, 'test games read right' AS measured, f.of_probe AS "of",
       f.labels, f.layer, f.run, s.run_id, s.unit, s.attempt_id, s.item, f.test_settings AS among,
       s.correct::DOUBLE AS hits, s.n::DOUBLE AS counted, s.n * (s.source_class = s.game_class)::DOUBLE AS base_hits,
       CASE WHEN s.source_class IS NOT NULL THEN s.n::DOUBLE END AS base_counted, true AS paired,
       false AS adjudicated, NULL::VARCHAR[] AS evaluators
FROM fitted AS f
JOIN scoped AS r ON r.run_id = f.run_id
JOIN probe_score AS s ON s.run_id = f.run_id AND s.unit = f.unit AND s.split = 'test' AND s.item >= 0
UNION ALL
SELECT f.checkpoint_id, f.checkpoint, f.place, '2 level', 'games read as lowest class',
       coalesce(d.dataset, k.dataset, 'games') || ', by ' || f.of_probe, f.labels, p.layer, r.run, p.run_id, p.unit, p.attempt_id,
       p.item, '', (p.vote_class = 0)::DOUBLE, 1.0, NULL, NULL, false, false, NULL
FROM probe_apply_prediction AS p
JOIN scoped AS r ON r.run_id = p.run_id
JOIN probe_apply_run AS q ON q.run_id = p.run_id
JOIN runs AS o ON 'run:' || o.spec_hash = q.probe
JOIN fitted AS f ON f.run_id = o.run_id AND f.layer = p.layer
LEFT JOIN cache_run AS k ON 'run:' || k.spec_hash = q.cache
LEFT JOIN datasets AS d ON d.reference = k.dataset
WHERE p.vote_class IS NOT NULL
UNION ALL
SELECT f.checkpoint_id, f.checkpoint, f.place, '2 level', 'games read as lowest class',
       coalesce(d.dataset, k.dataset, 'games') || ', by ' || f.of_probe, f.labels, p.layer, r.run, p.run_id, p.unit, p.attempt_id,
       -1 - s.item, f.test_settings, NULL, NULL, (s.vote_class = 0)::DOUBLE, 1.0, false, false, NULL
FROM (SELECT DISTINCT run_id, unit, layer, attempt_id FROM probe_apply_prediction WHERE vote_class IS NOT NULL) AS p
JOIN scoped AS r ON r.run_id = p.run_id
JOIN probe_apply_run AS q ON q.run_id = p.run_id
JOIN runs AS o ON 'run:' || o.spec_hash = q.probe
JOIN fitted AS f ON f.run_id = o.run_id AND f.layer = p.layer
JOIN probe_score AS s ON s.run_id = f.run_id AND s.unit = f.unit AND s.split = 'test' AND s.item >= 0
    AND s.vote_class IS NOT NULL
LEFT JOIN cache_run AS k ON 'run:' || k.spec_hash = q.cache
LEFT JOIN datasets AS d ON d.reference = k.dataset
UNION ALL
SELECT a.checkpoint_id, a.checkpoint, a.checkpoint_place, '3 opponent', 'points of the unedited model',
       a.opponent || ', ' || a.opening || ', ' || a.policy || ', ' || a.color, NULL, NULL, r.run, g.run_id, g.unit,
       g.attempt_id, g.opening_number, a.opening_stream,
       game_score($scoring, g.result, g.termination, g.adjudication_cp, a.color), 1.0, NULL, NULL, false,
       g.result = '*' AND g.adjudication_cp IS NOT NULL, a.evaluators
FROM arms AS a
JOIN scoped AS r ON r.run_id = a.run_id
JOIN game AS g ON g.run_id = a.run_id AND g.match = a.match
WHERE a.intervention_id IS NULL AND a.checkpoint_id IS NOT NULL
    AND game_score($scoring, g.result, g.termination, g.adjudication_cp, a.color) IS NOT NULL

-- statement: base
SELECT dense_rank() OVER (ORDER BY place, checkpoint_id, cause, measured, "of", labels) AS cell, *
FROM measured

-- statement: table
SELECT cell, any_value(checkpoint) AS checkpoint, any_value(cause) AS cause, any_value(measured) AS measured,
       any_value("of") AS "of", any_value(labels) AS labels,
       CASE any_value(cause)
           WHEN '2 level' THEN CASE WHEN sum(hits) > 0.9 * sum(counted) THEN 'stands' ELSE 'does not stand' END
           WHEN '3 opponent' THEN CASE WHEN sum(hits) < 0.2 * sum(counted) OR sum(hits) > 0.8 * sum(counted)
                                       THEN 'stands' ELSE 'does not stand' END END AS says,
       min(layer) AS layer, count(DISTINCT (run_id, unit, item)) FILTER (counted IS NOT NULL) AS n,
       CASE any_value(cause) WHEN '3 opponent' THEN count(*) FILTER (adjudicated) END AS adjudicated,
       string_agg(DISTINCT run, ', ' ORDER BY run) AS runs,
       nullif(concat_ws('; ', CASE WHEN bool_or(adjudicated)
            THEN 'unfinished games are scored by Stockfish''s evaluation (column adjudicated)' END,
            evaluators_text(all_evaluators(list(evaluators) FILTER (adjudicated)), 'these games')), '') AS warning,
       any_value(checkpoint_id) AS checkpoint_id
FROM base
GROUP BY cell
ORDER BY cell

-- statement: clusters
-- A cluster is one game, with all runs that read it; of matches one opening.
WITH summed AS (
    SELECT cell, item, among, sum(hits) FILTER (cause <> '3 opponent') AS hits,
           sum(counted) FILTER (cause <> '3 opponent') AS counted, sum(hits) FILTER (cause = '3 opponent') AS points,
           sum(counted) FILTER (cause = '3 opponent') AS scored, sum(base_hits) AS base_hits,
           sum(base_counted) AS base_counted, sum(base_hits) FILTER (paired) AS paired_hits,
           sum(base_counted) FILTER (paired) AS paired_counted
    FROM base GROUP BY ALL
)
SELECT cell, hits, counted, points, scored, base_hits, base_counted, paired_hits, paired_counted, count(*) AS clusters
FROM summed
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, cause, "of", item, hits, counted, base_hits, run_id
FROM base
WHERE counted IS NOT NULL
ORDER BY run_place(run_id), unit, item
