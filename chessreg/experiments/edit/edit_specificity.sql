-- title: edit specificity
-- topic: board edits
-- question: Does an edit change anything except its target?
-- aliases: specificity, frontier of edits, damage of edits, side effects, kl after edit
-- paper: none: beyond Karvonen 2024, section 4.2
-- kinds: edit
-- needs: EXISTS (SELECT 1 FROM trial AS t WHERE t.run_id = r.id AND t.condition <> 'skipped')
-- made by: chessreg run edit --wrong-layer-control --sham-control --sae SAE
-- default: checkpoint, condition, layers, scale; effect, moved, kl; states
-- columns:
--   checkpoint: the model
--   condition: edit (the piece removed), or a control: random, shuffled (the direction of another piece), wrong-layer
--       (the same directions half the model's depth away), sham (length 0), encode-decode (the residual as SAEs
--       reconstruct it, at the same layers and tokens)
--   intervention: source, layers (0-based), scale and positions of the edit
--   layers: its layers as text; a control has the layers of its edit
--   scale: value of --scale, which --scale-rule interprets; a control has that of its edit
--   edits_tried [hidden]: edits in the run: more than one is a sweep
--   states [states]: positions with a piece to remove
--   games [games]: games of these positions
--   effect [%]: mean exact probability of a legal move on the board without the piece, the aim of the edit; games are
--       resampled
--   gain [%]: effect minus that of the clean model, same games
--   read_empty [%]: mean probability of an empty square, by the probe of the last layer, for the square of the piece
--   moved [%]: damage: probability, among moves legal on both boards, that moved from one move to another
--   kl [nats]: damage: Kullback-Leibler divergence of the clean choice among these moves from the edited one
--   squares_changed [%]: damage: share of the 63 other squares whose most probable class, by that probe, differs from
--       clean
--   frontier: for an edit, whether no other edit of the run has as much effect with less moved
--   measured [states]: states with a known damage; runs of earlier versions have none
--   run: the edit run
--   done [states]: completed units
--   planned [states]: units of the run
--   checkpoint_id [hidden]: id of the checkpoint
--   run_id [hidden]: id of the run
-- statistics:
--   effect = percent(mass_modified, states)
--   gain = percent_difference(mass_modified, states, base_mass_modified, base_states)
--   read_empty = percent(read_empty, measured)
--   moved = percent(moved, compared)
--   kl = mean(kl, compared)
--   squares_changed = percent(squares_changed, measured)
-- plot: edit specificity
--   aliases: specificity of edits
--   form: lines
--   x: moved
--   y: effect
--   series: condition, layers, run
--   panels: checkpoint
--   where: measured > 0
-- plot: frontier of edits
--   aliases: edit frontier
--   form: lines
--   x: moved
--   y: effect
--   series: run
--   panels: checkpoint
--   where: frontier

-- statement: skipped
SELECT run, reason, states, hint FROM skipped_edits
WHERE kind = 'edit' AND run_id IN (SELECT run_id FROM scoped)
ORDER BY states DESC, run, reason, hint

-- statement: trials
-- The greedy row of every state and condition; their names contain the numbers of conditions and of edits.
SELECT t.run_id, t.unit, t.condition, regexp_replace(t.condition, '-[0-9]+$', '') AS kind, t.intervention_id, t.setting,
       t.attempt_id, t.item, t.ply, t.text, exact_double(t.mass_modified) AS mass_modified,
       exact_double(t.read_empty) AS read_empty, exact_double(t.squares_changed) AS squares_changed,
       exact_double(t.shared_moved) AS moved, exact_double(t.shared_kl) AS kl
FROM edits_trial AS t
WHERE t.kind = 'edit' AND t.sample = -1 AND t.condition <> 'skipped' AND t.run_id IN (SELECT run_id FROM scoped)

-- statement: cells
-- One row per run, kind of condition, and the edit that it is or that it is a control of.
SELECT a.run_id, a.kind, a.setting, a.intervention_id, i.checkpoint_id, c.checkpoint, i.intervention,
       layers_text(TRY_CAST(e.layers AS BIGINT[])) AS layers, e.scale, r.run, r.done, r.planned,
       count(*) FILTER (a.kind = 'edit') OVER (PARTITION BY a.run_id) AS edits_tried,
       dense_rank() OVER (ORDER BY c.place, r.created_at, a.run_id, a.setting,
                          list_position(['edit', 'random', 'shuffled', 'wrong-layer', 'sham', 'encode-decode'], a.kind), a.kind) AS cell
FROM (SELECT run_id, kind, setting, min(intervention_id) AS intervention_id FROM trials
      WHERE kind <> 'clean' GROUP BY ALL) AS a
JOIN scoped AS r ON r.run_id = a.run_id
JOIN interventions AS i ON i.intervention_id = a.intervention_id
LEFT JOIN (SELECT DISTINCT t.run_id, t.setting, n.layers, n.scale
           FROM trials AS t JOIN interventions AS n USING (intervention_id) WHERE t.kind = 'edit') AS e
    ON e.run_id = a.run_id AND e.setting IS NOT DISTINCT FROM a.setting
LEFT JOIN checkpoints AS c ON c.checkpoint_id = i.checkpoint_id

-- statement: base
SELECT k.cell, k.run, k.checkpoint_id, k.checkpoint, k.intervention, t.*
FROM trials AS t
JOIN cells AS k ON k.run_id = t.run_id AND k.kind = t.kind AND k.setting IS NOT DISTINCT FROM t.setting

-- statement: means
SELECT cell, count(DISTINCT unit) AS states, count(DISTINCT item) AS games,
       count(DISTINCT unit) FILTER (read_empty IS NOT NULL) AS measured,
       sum(mass_modified)::DOUBLE / count(mass_modified) AS effect, sum(moved)::DOUBLE / count(moved) AS moved
FROM base GROUP BY cell

-- statement: table
SELECT k.cell, k.checkpoint, k.kind AS condition, k.intervention, k.layers, k.scale, k.edits_tried, m.states, m.games,
       CASE WHEN k.kind = 'edit' AND m.moved IS NOT NULL THEN NOT EXISTS (
           SELECT 1 FROM cells AS o JOIN means AS n ON n.cell = o.cell
           WHERE o.run_id = k.run_id AND o.kind = 'edit' AND n.effect >= m.effect AND n.moved <= m.moved
               AND (n.effect > m.effect OR n.moved < m.moved)) END AS frontier,
       m.measured, k.run, k.done, k.planned, k.checkpoint_id, k.run_id
FROM cells AS k JOIN means AS m ON m.cell = k.cell
ORDER BY k.cell

-- statement: clusters
-- A cluster is one game; the same row has the sums of the clean model in the same states.
WITH summed AS (
    SELECT run_id, item, cell, sum(mass_modified)::DOUBLE AS mass_modified, count(mass_modified) AS states,
           sum(read_empty)::DOUBLE AS read_empty, count(read_empty) AS measured,
           sum(squares_changed)::DOUBLE AS squares_changed,
           sum(moved)::DOUBLE AS moved, sum(kl)::DOUBLE AS kl, count(moved) AS compared
    FROM base GROUP BY ALL
),
clean AS (
    SELECT run_id, item, sum(mass_modified)::DOUBLE AS base_mass_modified, count(mass_modified) AS base_states
    FROM trials WHERE kind = 'clean' GROUP BY ALL
)
SELECT s.cell, s.mass_modified, s.states, c.base_mass_modified, c.base_states, s.read_empty, s.measured,
       s.squares_changed, s.moved, s.kl, s.compared, count(*) AS clusters
FROM summed AS s LEFT JOIN clean AS c ON c.run_id = s.run_id AND c.item = s.item
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, condition, item AS game, ply, text, mass_modified::DOUBLE AS mass_modified,
       moved::DOUBLE AS moved, kl::DOUBLE AS kl, squares_changed::DOUBLE AS squares_changed,
       read_empty::DOUBLE AS read_empty, intervention, run_id
FROM base
ORDER BY run_place(run_id), unit, condition
