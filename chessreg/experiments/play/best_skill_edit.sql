-- title: best skill edit
-- topic: play
-- question: Which skill intervention won on half of the openings, and its score on the others?
-- aliases: skill sweep, karvonen table 6 skill, best intervention, best steering vector, best scale
-- paper: Karvonen 2024, Table 6 and Appendix C
-- kinds: play
-- needs: EXISTS (SELECT 1 FROM "match" AS m JOIN intervention AS i ON i.id = m.intervention_id
--       JOIN intervention AS o ON o.checkpoint_id = i.checkpoint_id AND o.source = i.source AND o.id <> i.id
--       AND (o.scale > 0) = (i.scale > 0)
--       WHERE m.run_id = r.id AND i.source NOT LIKE 'random%' AND i.source NOT LIKE 'shuffled%'
--       AND o.id IN (SELECT intervention_id FROM "match"))
-- made by: chessreg run play
-- default: checkpoint, source, goal, opponent, intervention; score, delta_score; n
-- columns:
--   checkpoint: the model that played
--   source: where the directions come from
--   goal: positive (the edit with the highest score wins) or negative (the lowest)
--   color: the model's color
--   opponent: the opponent as requested
--   engine_version: version of the opponent's engine
--   opening: standard, random:PLIES or book:DIGEST
--   policy: how the model's move is chosen
--   move_limit [moves]: full moves of the model after which the game is stopped and adjudicated
--   rules: other settings that differ from the defaults of `run play`: temperatures, a full context, adjudication
--   intervention: the best edit on the choosing openings; none if no edit qualifies
--   layers [hidden]: its layers, 0-based
--   scale [hidden]: its scale
--   tried [edits]: number of edits of this source, goal and protocol
--   qualified [edits]: number of edits to choose from: neither all points lost nor all won, and legality at or
--       above the floor
--   legality_floor [%]: required legality: 98 % of first tries (the paper's condition), or 2 points less than the model
--       without intervention where that is lower; of policy legal, the mean exact probability of a legal move
--   legality [%]: legality of the chosen edit, on the choosing openings
--   selected_on: the openings on which the edits were compared: those with even numbers
--   chosen_score: points per game on these openings (biased by the choice)
--   reported_on: the other openings, with odd numbers
--   score: points per game on them, with its interval; openings are resampled, or games from the standard position
--   delta_score: score minus that of the model without intervention, on the same openings
--   n [games]: games on the openings reported on
--   runs: the runs that played
--   warning [hidden]: that several engines evaluated the games of this contest
--   checkpoint_id [hidden]: id of the checkpoint
--   intervention_id [hidden]: id of the intervention
-- statistics:
--   chosen_score = score(chosen_points, chosen)
--   score = score(points, scored)
--   delta_score = score_difference(points, scored, base_points, base_scored)

-- statement: cells
-- One row per arm, controls left out. Arms of one contest differ in layers and scale alone.
SELECT *, CASE WHEN scale > 0 THEN 'positive' ELSE 'negative' END AS goal,
       dense_rank() OVER (ORDER BY own_name, checkpoint_place, color, engine, engine_version, engine_id,
                                   level, opponent,
                                   "limit", opening, policy, move_limit, rules) AS protocol
FROM arms
JOIN (SELECT run_id, run FROM scoped) USING (run_id)
WHERE intervention_id IS NULL OR NOT regexp_matches(source, '^(random|shuffled)')

-- statement: played
SELECT c.protocol, c.source, c.goal, c.intervention_id, c.opening_stream, g.opening_number,
       g.run_id, g.unit, g.attempt_id, g.termination, g.result, g.plies, c.run, c.checkpoint, c.checkpoint_id, c.intervention, g.turns, g.first_try_legal, g.legal_mass,
       game_score($scoring, g.result, g.termination, g.adjudication_cp, c.color) AS score,
       g.result = '*' AND g.adjudication_cp IS NOT NULL AS adjudicated
FROM play_game AS g JOIN cells AS c ON c.run_id = g.run_id AND c.match = g.match

-- statement: tried
-- Every edit of every contest, with the model without intervention, on the openings that edits are chosen on.
SELECT protocol, source, goal, intervention, intervention_id, avg(score) AS score,
       100 * coalesce(avg(exact(legal_mass)), sum(first_try_legal)::DOUBLE / nullif(sum(turns), 0)::DOUBLE) AS legality
FROM played
WHERE opening_number % 2 = 0 AND score IS NOT NULL
GROUP BY ALL

-- statement: best
-- The winner of each contest of at least two edits, numbered.
SELECT protocol, source, goal, tried, qualified, legality_floor,
       CASE WHEN qualifies THEN intervention_id END AS intervention_id, CASE WHEN qualifies THEN legality END AS legality,
       row_number() OVER (ORDER BY protocol, source, goal) AS cell
FROM (
    SELECT *, count(*) OVER contest AS tried, count(*) FILTER (qualifies) OVER contest AS qualified,
           row_number() OVER (PARTITION BY protocol, source, goal
                              ORDER BY NOT qualifies, CASE goal WHEN 'positive' THEN -score ELSE score END,
                                       intervention, intervention_id) AS place
    FROM (
        SELECT e.*, least(98, coalesce(p.legality - 2, 98)) AS legality_floor,
               e.score > 0 AND e.score < 1 AND coalesce(e.legality >= legality_floor, true) AS qualifies
        FROM tried AS e LEFT JOIN tried AS p ON p.protocol = e.protocol AND p.intervention_id IS NULL
        WHERE e.intervention_id IS NOT NULL
    )
    WINDOW contest AS (PARTITION BY protocol, source, goal)
)
WHERE place = 1 AND tried > 1

-- statement: base
SELECT b.cell, p.*
FROM best AS b
JOIN played AS p ON p.protocol = b.protocol AND p.intervention_id = b.intervention_id

-- statement: table
WITH contest AS (
    SELECT protocol, any_value(checkpoint) AS checkpoint, any_value(color) AS color, any_value(opponent) AS opponent,
           any_value(engine_version) AS engine_version, any_value(opening) AS opening, any_value(policy) AS policy,
           any_value(move_limit) AS move_limit, any_value(rules) AS rules, any_value(checkpoint_id) AS checkpoint_id,
           all_evaluators(list(evaluators)) AS evaluators
    FROM cells
    GROUP BY ALL
),
arm AS (
    SELECT protocol, intervention_id, any_value(intervention) AS intervention,
           TRY_CAST(any_value(layers) AS BIGINT[]) AS layers, any_value(scale) AS scale,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs
    FROM cells
    GROUP BY ALL
)
SELECT b.cell, c.checkpoint, b.source, b.goal, c.color, c.opponent, c.engine_version, c.opening, c.policy, c.move_limit,
       c.rules, coalesce(a.intervention, 'none') AS intervention, a.layers, a.scale, b.tried, b.qualified,
       b.legality_floor, b.legality, 'even openings' AS selected_on, 'odd openings' AS reported_on,
       (SELECT count(*) FROM base AS p WHERE p.cell = b.cell AND p.opening_number % 2 = 1) AS n, a.runs,
       CASE WHEN (SELECT bool_or(p.adjudicated) FROM played AS p WHERE p.protocol = b.protocol)
            THEN evaluators_text(c.evaluators, 'the compared games') END AS warning,
       c.checkpoint_id, b.intervention_id
FROM best AS b
JOIN contest AS c ON c.protocol = b.protocol
LEFT JOIN arm AS a ON a.protocol = b.protocol AND a.intervention_id = b.intervention_id
ORDER BY b.cell

-- statement: clusters
-- A cluster is one opening; the same row has the points of the plain model from the same opening.
WITH opened AS (
    SELECT protocol, intervention_id, opening_stream, opening_number, sum(score) AS points, count(score) AS scored
    FROM played
    GROUP BY ALL
)
SELECT b.cell, CASE WHEN o.opening_number % 2 = 0 THEN o.points END AS chosen_points,
       CASE WHEN o.opening_number % 2 = 0 THEN o.scored END AS chosen,
       CASE WHEN o.opening_number % 2 = 1 THEN o.points END AS points,
       CASE WHEN o.opening_number % 2 = 1 THEN o.scored END AS scored,
       p.points AS base_points, p.scored AS base_scored, count(*) AS clusters
FROM best AS b
JOIN opened AS o ON o.protocol = b.protocol AND o.intervention_id = b.intervention_id
LEFT JOIN opened AS p ON p.protocol = o.protocol AND p.intervention_id IS NULL AND p.opening_stream = o.opening_stream
    AND p.opening_number = o.opening_number
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, opening_number, result, score, termination, plies, intervention, run_id
FROM base
ORDER BY run_place(run_id), unit
