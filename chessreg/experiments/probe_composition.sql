-- title: probe composition
-- topic: probes
-- question: Are piece directions a sum of a color and a type direction?
-- aliases: composition, compositionality, davis compositional map, cosine of probe directions, direction geometry
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, introduction (and the ICMLA paper's compositional map)
-- kinds: probe-composition
-- made by: chessreg run probe-composition --joint-probe JOINT --color-probe COLOR --type-probe TYPE
-- default: checkpoint, residual_index, parts, direction, pawns; cosine, retrieval; n
-- columns:
--   checkpoint: the model; none: imported probes without a checkpoint
--   positions: tokens at which the probe reads; pooled: all phases of the probes together
--   phases [hidden]: numbers of the phases
--   residual_index: 0 the embeddings, L the output of the L-th block; none: after the final LayerNorm
--   hook_point: hook point of the activations
--   layer [hidden]: 0-based
--   parts: probes of color and type, or means of the joint probe's own weights
--   direction: raw weights, class-centred, or empty-minus-piece
--   pawns: ranks 2-7 (without pawns on the first and last rank, where no pawn can be), or everywhere
--   n [pairs]: pairs of a square and a piece
--   cosine: cosine of color plus type with the joint direction; squares are resampled
--   retrieval [%]: pieces whose closest one of the 13 joint directions is the right one
--   retrieval_of_13 [%]: the same for pieces and the empty square (the author's pooled numbers)
--   wrong_color: cosine of the other color plus the type
--   wrong_type: cosine of the color plus another type, mean over the five
--   color_alone: cosine of the color's direction
--   type_alone: cosine of the type's direction
--   empty: cosine of the empty square's color plus type with its joint direction
--   imported [hidden]: whether the joint probes are imported
--   runs: the runs
--   done [units]: completed units
--   planned [units]: units of the runs
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the first of the runs
-- statistics:
--   cosine = mean(cosines, pairs)
--   retrieval = percent(hits, pairs)
--   retrieval_of_13 = percent(hits_of_13, classes)
-- plot: probe composition
--   form: lines
--   x: residual_index
--   y: cosine
--   series: checkpoint, direction, parts
--   spread: runs
--   panels: positions, pawns

-- statement: cells
-- One row per run and layer. `pool`: runs that differ in the phase of their probes alone.
SELECT u.run_id, u.unit, u.layer, u.hook_point, u.positions, u.parts, coalesce(q.direction, 'raw') AS direction,
       residual_index(u.hook_point, u.layer) AS residual_index, o.run, o.done, o.planned, o.created_at,
       p.checkpoint_id, c.checkpoint, c.place AS checkpoint_place, coalesce(j.kind, '') <> 'probe' AS imported, p.phase,
       settings_text(coalesce(j.spec, '{}'), ['phase', 'layers', 'min_positions', 'files', 'label']) AS settings
FROM (SELECT DISTINCT run_id, unit, layer, hook_point, positions, parts FROM probe_composition) AS u
JOIN scoped AS o ON o.run_id = u.run_id
JOIN probe_composition_run AS q ON q.run_id = u.run_id
LEFT JOIN run AS j ON 'run:' || j.spec_hash = q.joint_probe
LEFT JOIN (SELECT run_id, layer, any_value(checkpoint_id) AS checkpoint_id, any_value(phase) AS phase
           FROM probes GROUP BY ALL) AS p ON p.run_id = j.id AND p.layer = u.layer
LEFT JOIN checkpoints AS c ON c.checkpoint_id = p.checkpoint_id

-- statement: pools
SELECT *, dense_rank() OVER (ORDER BY checkpoint_place, imported, settings, parts, direction, hook_point, layer) AS pool
FROM cells

-- statement: members
SELECT *, dense_rank() OVER (ORDER BY checkpoint_place NULLS FIRST, imported, parts, direction, settings,
                                      residual_index NULLS LAST, hook_point, layer, pooled,
                                      CASE WHEN NOT pooled THEN phase END NULLS FIRST,
                                      CASE WHEN NOT pooled THEN positions END,
                                      CASE WHEN NOT pooled THEN created_at END, CASE WHEN NOT pooled THEN run_id END)
           AS place
FROM (
    SELECT *, false AS pooled FROM pools
    UNION ALL
    SELECT *, true AS pooled FROM pools
    WHERE pool IN (SELECT pool FROM pools WHERE phase IS NOT NULL GROUP BY pool HAVING count(DISTINCT phase) > 1)
)

-- statement: base
-- One row per square and piece; a cell is a member and whether pawns count on the first and last rank.
SELECT 2 * m.place + w.everywhere AS cell, r.run_id, r.unit, r.attempt_id, r.item, r.square, r.piece, r.value AS cosine,
       (r.named = r.piece)::BIGINT AS hit, r.named, r.wrong_color, r.wrong_type, r.color_alone, r.type_alone, m.run,
       m.checkpoint_id, m.checkpoint, r.layer
FROM probe_composition AS r
JOIN members AS m ON m.run_id = r.run_id AND m.unit = r.unit
CROSS JOIN (SELECT unnest([0, 1]) AS everywhere) AS w
WHERE w.everywhere = 1 OR lower(r.piece) <> 'p' OR r.square BETWEEN 8 AND 55

-- statement: table
WITH facts AS (
    SELECT 2 * place AS first, any_value(checkpoint) AS checkpoint,
           CASE WHEN bool_or(pooled) THEN 'pooled' ELSE any_value(positions) END AS positions,
           string_agg(DISTINCT phase::VARCHAR, ',' ORDER BY phase::VARCHAR) AS phases,
           any_value(residual_index) AS residual_index, any_value(hook_point) AS hook_point, any_value(layer) AS layer,
           any_value(parts) AS parts, any_value(direction) AS direction, any_value(imported) AS imported,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs, whole(sum(done)) AS done,
           whole(sum(planned)) AS planned, any_value(checkpoint_id) AS checkpoint_id,
           arg_min(run_id, (created_at, run_id)) AS run_id
    FROM members
    GROUP BY place
),
summed AS (
    SELECT cell, count(*) FILTER (piece <> '.') AS n, avg(exact(wrong_color))::DOUBLE AS wrong_color,
           avg(exact(wrong_type))::DOUBLE AS wrong_type, avg(exact(color_alone))::DOUBLE AS color_alone,
           avg(exact(type_alone))::DOUBLE AS type_alone, avg(exact(cosine)) FILTER (piece = '.')::DOUBLE AS empty
    FROM base
    GROUP BY cell
)
SELECT s.cell, f.checkpoint, f.positions, f.phases, f.residual_index, f.hook_point, f.layer, f.parts, f.direction,
       CASE WHEN s.cell % 2 = 1 THEN 'everywhere' ELSE 'ranks 2-7' END AS pawns, s.n, s.wrong_color, s.wrong_type,
       s.color_alone, s.type_alone, s.empty, f.imported, f.runs, f.done, f.planned, f.checkpoint_id, f.run_id
FROM summed AS s JOIN facts AS f ON f.first = 2 * (s.cell // 2)
ORDER BY s.cell

-- statement: clusters
-- A cluster is one square.
WITH by_square AS (
    SELECT cell, square, round(sum(exact(cosine)) FILTER (piece <> '.'), 12)::DOUBLE AS cosines,
           whole(sum(hit) FILTER (piece <> '.')) AS hits, count(*) FILTER (piece <> '.') AS pairs,
           CASE WHEN bool_or(piece = '.' AND named IS NOT NULL) THEN whole(sum(hit)) ELSE 0 END AS hits_of_13,
           CASE WHEN bool_or(piece = '.' AND named IS NOT NULL) THEN count(hit) ELSE 0 END AS classes
    FROM base
    GROUP BY ALL
)
SELECT cell, cosines, hits, pairs, hits_of_13, classes, count(*) AS clusters
FROM by_square
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, square_text(square) AS square, piece, cosine, named, wrong_color,
       wrong_type, color_alone, type_alone, layer, run_id
FROM base
ORDER BY run_place(run_id), unit, item
