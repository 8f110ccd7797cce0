-- title: markov by layer
-- topic: board state
-- question: Do different move orders to one position give the same representation?
-- aliases: markov, path independence, davis table 6, markov test, transpositions, markov property
-- paper: Davis 2026, Table 6 and section 4.5
-- kinds: markov
-- made by: chessreg run markov
-- default: checkpoint, twin_of, cosine, layer; within, null_mean, d, p_holm; sequences
-- columns:
--   checkpoint: the model
--   twin_of: the model whose untrained twin this is
--   cosine: raw, or centred: after the mean state of the phase is subtracted
--   hook_point [hidden]: hook point of the activations
--   site: the hook point, * for the layer
--   layer: 0-based; the paper counts from 1
--   classes [positions]: positions that several move orders reach
--   sequences [move orders]: move orders of all these positions
--   within: mean over positions of the mean cosine between their move orders
--   t: the paper's T: within minus the mean cosine of random pairs of one phase; positions are resampled
--   null_mean: mean of T over random groupings of the same sizes, and the middle 95 % of them
--   null_mean_low [hidden]: the 2.5 % quantile of T over random groupings
--   null_mean_high [hidden]: the 97.5 % quantile
--   null_sd: the standard deviation of T over random groupings
--   p: share of random groupings with T at least as large, counting the observed one; the smallest possible is
--       1 / (1 + resamples)
--   p_holm: after Holm's correction over the hook points of the run
--   d: Cohen's d: T in standard deviations of the cosine of random pairs, with its interval, positions resampled
--   t_members: T against random pairs of these move orders, for any reference population
--   d_members: d against the same pairs
--   apart: mean cosine of move orders to one position whose last moves differ
--   same_last: mean cosine with another board after the same number of plies and the same last move
--   beyond_last: within minus same_last, the part of T that a shared last move does not explain; positions are
--       resampled
--   log10_p_last: log10 of p of the paired t test of beyond_last > 0, with positions as independent
--   nearest: mean cosine with a board that differs in one piece, after the same number of plies
--   beyond_nearest: within minus nearest; positions are resampled
--   reference_population: population of the random pairs: members (the move orders), same-plies or prefixes
--       (random prefixes of games, of equal or of any ply)
--   equal: when boards count as equal: by position, or by placement of the pieces alone
--   replacement [hidden]: random sets are drawn with replacement
--   resamples [groupings]: random groupings
--   reach [positions]: positions that could have been chosen
--   overlap: whole games of the prefixes that the model was trained on
--   run: the markov run
--   done [units]: completed units
--   planned [units]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   t = mean(excess, positions)
--   d = mean(effect, effect_n)
--   t_members = mean(excess_members, members_n)
--   d_members = mean(effect_members, effect_members_n)
--   p_holm = holm(p, run_id, cosine)
--   beyond_last = mean_difference(with_last, last_n, same_last, last_n)
--   log10_p_last = paired_log10_p(last_difference, last_squares, last_n)
--   beyond_nearest = mean_difference(with_nearest, nearest_n, nearest, nearest_n)
-- plot: markov statistic by layer
--   aliases: markov
--   form: lines
--   x: layer
--   y: t
--   beside: null_mean
--   series: checkpoint, site, run
--   panels: cosine
-- plot: markov effect by layer
--   aliases: cohens d by layer
--   form: lines
--   x: layer
--   y: d
--   series: checkpoint, site, run
--   panels: cosine
-- plot: markov beyond the last move
--   form: lines
--   x: layer
--   y: beyond_last
--   series: checkpoint, site, run
--   panels: cosine

-- statement: cells
-- One row per hook point and cosine of a run.
SELECT t.* EXCLUDE (members_mean, members_sd),
       CASE m.reference_population WHEN 'members' THEN t.population ELSE t.members_mean END AS members_mean,
       CASE m.reference_population WHEN 'members' THEN t.population_sd ELSE t.members_sd END AS members_sd,
       m.reference_population, m.equal, m.replacement, r.run, r.done, r.planned, r.created_at, k.checkpoint_id, c.checkpoint,
       c.place AS checkpoint_place,
       CASE WHEN c.random_init THEN coalesce(parent.checkpoint, right(replace(c.parent_id::VARCHAR, '-', ''), 6)) END
           AS twin_of,
       regexp_replace(t.hook_point, '^blocks\.\d+\.', 'blocks.*.') AS site
FROM markov_statistic AS t
JOIN scoped AS r ON r.run_id = t.run_id
JOIN markov_run AS m ON m.run_id = t.run_id
JOIN run_checkpoint AS k ON k.run_id = t.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = k.checkpoint_id
LEFT JOIN checkpoints AS parent ON c.random_init AND parent.checkpoint_id = c.parent_id

-- statement: numbered
SELECT *, dense_rank() OVER (ORDER BY checkpoint_place, created_at, run_id, cosine = 'centred', layer, hook_point) AS cell
FROM cells

-- statement: base
-- One row per position, hook point and cosine.
SELECT n.cell, p.run_id, p.unit, p.attempt_id, p.item, n.run, n.checkpoint_id, n.checkpoint, n.hook_point, n.layer,
       n.cosine, k.text AS position, whole(k.value) AS members, k.phase,
       CASE n.cosine WHEN 'raw' THEN p.value ELSE p.centred END AS within,
       CASE n.cosine WHEN 'raw' THEN p.excess ELSE p.centred_excess END AS excess,
       CASE n.cosine WHEN 'raw' THEN p.excess ELSE p.centred_excess END
           / CASE WHEN n.d IS NOT NULL THEN n.population_sd END AS effect,
       CASE n.cosine WHEN 'raw' THEN p.value ELSE p.centred END - n.members_mean AS excess_members,
       (CASE n.cosine WHEN 'raw' THEN p.value ELSE p.centred END - n.members_mean)
           / nullif(n.members_sd, 0) AS effect_members,
       CASE n.cosine WHEN 'raw' THEN p.apart ELSE p.centred_apart END AS apart,
       CASE n.cosine WHEN 'raw' THEN p.same_last ELSE p.centred_same_last END AS same_last,
       CASE n.cosine WHEN 'raw' THEN p.nearest ELSE p.centred_nearest END AS nearest
FROM markov_prediction AS p
JOIN numbered AS n ON n.run_id = p.run_id AND n.hook_point = p.name
LEFT JOIN markov_prediction AS k ON k.run_id = p.run_id AND k.item = p.item AND k.name = 'class'

-- statement: table
WITH shown AS (
    SELECT cell, sum(exact(within))::DOUBLE / count(within) AS within, sum(exact(apart))::DOUBLE / count(apart) AS apart,
           sum(exact(same_last))::DOUBLE / count(same_last) AS same_last,
           sum(exact(nearest))::DOUBLE / count(nearest) AS nearest
    FROM base GROUP BY cell
)
SELECT n.cell, n.checkpoint, n.twin_of, n.cosine, n.hook_point, n.site, n.layer, n.classes, n.n AS sequences,
       s.within, n.null_mean, n.null_low AS null_mean_low, n.null_high AS null_mean_high, n.null_sd, n.p, s.apart,
       s.same_last, s.nearest, n.reference_population, n.equal, n.replacement, n.resamples,
       n.reached AS reach, o.overlap, n.run, n.done, n.planned, n.checkpoint_id, n.run_id
FROM numbered AS n
JOIN shown AS s ON s.cell = n.cell
LEFT JOIN shared_games AS o ON o.run_id = n.run_id
ORDER BY n.cell

-- statement: clusters
-- A cluster is one position.
SELECT cell, excess, 1 AS positions, effect, CASE WHEN effect IS NOT NULL THEN 1 END AS effect_n, excess_members,
       CASE WHEN excess_members IS NOT NULL THEN 1 END AS members_n, effect_members,
       CASE WHEN effect_members IS NOT NULL THEN 1 END AS effect_members_n,
       CASE WHEN same_last IS NOT NULL THEN within END AS with_last, same_last,
       CASE WHEN same_last IS NOT NULL THEN 1 END AS last_n, within - same_last AS last_difference,
       (within - same_last) ** 2 AS last_squares, CASE WHEN nearest IS NOT NULL THEN within END AS with_nearest, nearest,
       CASE WHEN nearest IS NOT NULL THEN 1 END AS nearest_n, count(*) AS clusters
FROM base
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || item AS board, run, item AS unit, position, members, phase, layer, cosine, within, excess, apart,
       same_last, nearest, hook_point, run_id
FROM base
ORDER BY run_place(run_id), unit, layer, hook_point, cosine
