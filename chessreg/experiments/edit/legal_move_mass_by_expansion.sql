-- title: legal move mass by expansion
-- topic: board edits
-- question: How does the expansion factor of the SAE change edits?
-- aliases: edits by size of sae, sae size, expansion factor
-- paper: Davis, Vasquez Ferrer & Sukthankar 2026, sections 4.3 and 4.8: autoencoders of several expansions
-- kinds: edit-next-token
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
--       AND (EXISTS (SELECT 1 FROM run AS p WHERE p.kind = 'probe' AND p.spec ->> 'sae' IS NOT NULL))
-- made by: chessreg run edit-next-token --preset davis-corrected --other-probes …, of probes by SAEs of two expansions
-- default: checkpoint, type, expansion, minus, scale; difference; cases
-- columns:
--   checkpoint: the model
--   type: SAE-Probe, or CD-Probe (difference of means of latents)
--   expansion: latents of the SAE that decodes the probe, divided by the model's d_model
--   minus: the smaller expansion that it is compared with; layers, scale, games and all settings but the SAE are equal
--   layers [hidden]: edited, 0-based
--   scale: value of --scale, which --scale-rule interprets
--   cases [cases]: prefixes of games that both edit
--   games [games]: games of these cases
--   target: for the larger, mean probability of tokens that begin a legal move on the target board
--   other: the same for the smaller
--   difference: the larger minus the smaller, same cases; games are resampled
--   run: the edit run of the larger
--   other_run: that of the smaller
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run of the larger
-- statistics:
--   target = mean(target, cases)
--   other = mean(other, cases)
--   difference = mean_difference(target, cases, other, cases)
-- plot: difference of expansions
--   form: dots
--   x: minus
--   y: difference
--   series: type, expansion, scale
--   panels: checkpoint

-- statement: made
-- The settings of the probes of every intervention, without their SAE.
SELECT i.intervention_id, string_agg(DISTINCT p.settings, ' | ' ORDER BY p.settings) AS probes
FROM (SELECT intervention_id, unnest(TRY_CAST(input_references AS VARCHAR[])) AS reference FROM interventions) AS i
JOIN (SELECT spec_hash, settings_text(spec, ['sae', 'expansion', 'layers', 'min_positions', 'allow_overlap']) AS settings
      FROM runs WHERE kind = 'probe') AS p ON 'run:' || p.spec_hash = split_part(i.reference, '/', 1)
GROUP BY i.intervention_id

-- statement: edits
-- The conditions whose directions an SAE decodes, with its expansion and the edited cases. `alike`: the settings
-- of edit and probes; those of other edits of the run do not count.
SELECT t.run_id, t.condition, any_value(r.run) AS run, any_value(r.created_at) AS created_at,
       any_value(coalesce(p.expansion, TRY_CAST(s.expansions AS BIGINT[])[1])) AS expansion, any_value(i.checkpoint_id) AS checkpoint_id,
       any_value(CASE p.source WHEN 'sae-latents' THEN 'SAE-Probe' ELSE 'CD-Probe' END) AS type,
       any_value(i.layers) AS layers, any_value(i.scale) AS scale, any_value(i.scale_rule) AS scale_rule,
       any_value(e.dataset) AS dataset,
       any_value([i.token_mask, e.probe_tokens, e.class_mean, e.probe_shift::VARCHAR, e.decay::VARCHAR, e.piece::VARCHAR,
                  e.blank::VARCHAR, m.probes]::VARCHAR) AS alike
FROM (SELECT DISTINCT run_id, condition, intervention_id FROM trial
      WHERE regexp_matches(condition, '^(edit|other)') AND run_id IN (SELECT run_id FROM scoped)) AS t
JOIN scoped AS r ON r.run_id = t.run_id
JOIN edits_run AS e ON e.run_id = t.run_id AND e.kind = 'edit-next-token'
JOIN interventions AS i ON i.intervention_id = t.intervention_id
JOIN probe_run AS p ON 'run:' || p.spec_hash = split_part(i.vector, '/', 1)
JOIN made AS m ON m.intervention_id = i.intervention_id
JOIN sae_run AS s ON 'run:' || s.spec_hash = p.sae
GROUP BY t.run_id, t.condition

-- statement: pairs
SELECT a.*, b.run_id AS other_run_id, b.condition AS other_condition, b.expansion AS minus, b.run AS other_run,
       c.checkpoint, dense_rank() OVER (ORDER BY c.place, a.layers, a.scale, a.type DESC, a.expansion, b.expansion,
                                                 a.created_at, a.run_id, b.created_at, b.run_id) AS cell
FROM edits AS a
JOIN edits AS b ON b.expansion < a.expansion AND b.checkpoint_id = a.checkpoint_id AND b.type = a.type
    AND b.layers::VARCHAR = a.layers::VARCHAR AND b.scale = a.scale AND b.scale_rule = a.scale_rule
    AND b.dataset = a.dataset AND b.alike = a.alike
LEFT JOIN checkpoints AS c ON c.checkpoint_id = a.checkpoint_id

-- statement: base
SELECT p.cell, p.run, p.checkpoint_id, p.checkpoint, p.type, p.expansion, p.minus, x.run_id, x.unit, x.attempt_id,
       x.item, x.ply, exact_double(x.mass_modified) AS target, exact_double(y.mass_modified) AS other
FROM pairs AS p
JOIN trial AS x ON x.run_id = p.run_id AND x.condition = p.condition
JOIN trial AS y ON y.run_id = p.other_run_id AND y.condition = p.other_condition AND y.item = x.item AND y.ply = x.ply

-- statement: table
SELECT p.cell, p.checkpoint, p.type, p.expansion, p.minus, TRY_CAST(p.layers AS BIGINT[]) AS layers, p.scale,
       count(*) AS cases, count(DISTINCT b.item) AS games, p.run, p.other_run, p.checkpoint_id, p.run_id
FROM pairs AS p JOIN base AS b ON b.cell = p.cell
GROUP BY ALL
ORDER BY p.cell

-- statement: clusters
-- A cluster is one game.
WITH summed AS (
    SELECT cell, item, count(*) AS cases, sum(target)::DOUBLE AS target, sum(other)::DOUBLE AS other
    FROM base GROUP BY cell, item
)
SELECT cell, cases, target, other, count(*) AS clusters FROM summed GROUP BY ALL ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, type, expansion, minus, item AS game, ply, target, other, run_id
FROM base
ORDER BY run_place(run_id), unit, type, minus
