-- title: elo by intervention
-- topic: play
-- question: How strong is the model with each intervention, without it, and with its controls?
-- aliases: elo, skill interventions, karvonen table 3, karvonen table 7, karvonen figure 2, strength, steering,
--       steering effect, intervention effect, match results, effect of steering, negative steering, does steering
--       increase elo, caa, vector changes how the model plays, stronger or weaker with the vector
-- paper: Karvonen 2024, Tables 3 and 7 and Figure 2
-- kinds: play, engine-match, imported-games
-- made by: chessreg run play
-- default: checkpoint, intervention, opponent, policy; elo, score, delta_score, minus_random; n
-- columns:
--   checkpoint: the model that played
--   intervention: source, layers (0-based), scale and positions of the edit; none: the unedited model
--   vector: the run of the vectors that the edit adds or replaces, and the seed of random ones
--   color: the model's color; `wins by level` and `chessreg compare` pool both colors of a run
--   engine: the opponent's program
--   engine_version: the version of the opponent's program
--   opponent: the opponent as requested
--   level [hidden]: the engine's skill level
--   limit [hidden]: limit of the engine for one move
--   opening: standard, random:PLIES or book:DIGEST
--   policy: how the model's move is chosen
--   move_limit [moves]: moves of the model after which a game is stopped and adjudicated
--   rules: further settings that differ from the defaults of `run play`: temperatures, a full context, adjudication
--   evaluator: the engine that evaluated positions, for adjudication, draws or assisted moves; several: the row mixes
--       them; empty: none, or not recorded
--   scoring: paper (draws a half; beyond the move limit more than 100 centipawns decide) or author-2024
--   n [games]: games played
--   planned [games]: games planned in these runs
--   stopped: outcome of a match that could stop early (--stop): the mean difference of its pairs that the test accepts, and
--       the number of pairs; undecided: all games were played. The scores of matches that stopped early are biased away
--       from the range that the test left open
--   unique_games [games]: different move lists among them
--   w [games]: won
--   d [games]: drawn
--   l [games]: lost
--   unscored [games]: no score under this scoring policy
--   adjudicated [games]: stopped and decided by the engine's evaluation
--   forfeits [games]: lost by illegal tries
--   ends: why the games ended, and the share of them
--   score: points per scored game, with its interval; openings are resampled, or games from the standard position
--   score_played: points per scored game that no side forfeited; 0.9 of few games is weaker evidence than 0.5 of many
--   elo [Elo]: against that engine; at a score of 0 or 1 only a bound is known
--   delta_score: score minus that of the model without intervention, on the same openings; from the standard position,
--       games of the same number are paired
--   delta_elo [Elo]: the same in Elo; at a score of 0 or 1 only a bound is known, which may have the other sign if there
--       are few games
--   minus_random: score minus that of random directions in place of this one, at the same layers and scale, on the
--       same openings; openings and directions are resampled. Directions made from this vector count: --source random
--       --of VECTOR, or --intervention.control random
--   random_draws [directions]: such directions that played
--   minus_shuffled: score minus that of directions from games with shuffled labels, likewise
--   shuffled_draws [directions]: such directions that played
--   first_try_legal [%]: turns of the model whose first try was a legal move; empty for the policies legal and trie,
--       which choose among the legal moves
--   runs: the runs that played
--   machines: the machines that ran them
--   warning [hidden]: notes on the row: games without a result are scored by Stockfish's evaluation; several engines evaluated
--       positions of these games, or of the games that they are compared with; for an edit: the model without it scores
--       below 0.2 or above 0.8 here, has not played, or is filtered out; every game was lost or won; controls have not
--       played, or fewer than 5 directions of one have, so that its interval is too narrow; the same direction has not
--       played with the opposite sign
--   edit [hidden]: intervention, with the name of its vector if the model has several such interventions; for plots
--   seed [hidden]: seed of a random direction, or of the shuffled labels
--   checkpoint_id [hidden]: its id
--   intervention_id [hidden]: its id
-- statistics:
--   score = score(points, scored)
--   elo = elo(points, scored)
--   delta_score = score_difference(points, scored, base_points, base_scored)
--   score_played = score(played_points, played)
--   delta_elo = elo_difference(points, scored, base_points, base_scored)
--   minus_random = score_difference(points, scored, random_points, random_scored)
--   minus_shuffled = score_difference(points, scored, shuffled_points, shuffled_scored)
-- stored: outcomes, different
-- plot: score by intervention
--   aliases: karvonen table 3, table 3
--   form: dots
--   x: edit
--   y: score
--   series: checkpoint, color, opponent, engine_version, limit, opening, move_limit, rules
--   spread: seed
--   panels: policy
-- plot: win rate by level
--   aliases: karvonen figure 2, figure 2
--   form: lines
--   x: level
--   y: score
--   series: checkpoint, edit, color, limit, policy, engine_version, move_limit, rules
--   spread: seed
--   panels: opening
--   where: level >= 0 AND policy <> 'engine'

-- statement: cells
-- One row per arm. Arms of one protocol differ only in their intervention; arms of one cell differ in no shown column.
SELECT *,
       dense_rank() OVER (ORDER BY own_name, checkpoint_place, color, engine, engine_version, engine_id,
                                   level, opponent,
                                   "limit", opening, policy, move_limit, rules,
                                   intervention_id IS NOT NULL, intervention, vector_seed, vector_name, intervention_id) AS cell,
       dense_rank() OVER (ORDER BY own_name, checkpoint_place, color, engine, engine_version, engine_id,
                                   level, opponent,
                                   "limit", opening, policy, move_limit, rules) AS protocol
FROM arms
JOIN (SELECT run_id, run, machines FROM scoped) USING (run_id)

-- statement: controls
-- The numbered control directions of each edit. They replace its vector at the same layers, scale and positions.
SELECT cell, control_cell, kind, row_number() OVER (PARTITION BY cell, kind ORDER BY control_id) AS draw
FROM (
    SELECT DISTINCT e.cell, c.cell AS control_cell, c.intervention_id AS control_id,
           regexp_extract(c.source, '^(random|shuffled)') AS kind
    FROM cells AS e
    JOIN cells AS c ON c.protocol = e.protocol AND c.stands_for = e.vector AND c.layers = e.layers AND c.scale = e.scale
        AND c.token_mask = e.token_mask
    WHERE e.stands_for IS NULL
)

-- statement: numbered
-- A part is a protocol. Its cells are numbered from 1.
SELECT DISTINCT protocol::VARCHAR AS part, cell, dense_rank() OVER (PARTITION BY protocol ORDER BY cell) AS number FROM cells

-- statement: parts
-- All that the numbers of a part depend on, except for its games.
SELECT n.part, n.number, c.run_id, c."match", c.color, c.policy, c.opening_stream,
       CASE WHEN c.intervention_id IS NOT NULL THEN p.number END AS plain_number, d.control_numbers
FROM cells AS c
JOIN numbered AS n ON n.cell = c.cell
LEFT JOIN (SELECT DISTINCT n.part, n.number FROM cells AS c JOIN numbered AS n ON n.cell = c.cell
           WHERE c.intervention_id IS NULL) AS p ON p.part = n.part
LEFT JOIN (SELECT o.cell, list({number: n.number, kind: o.kind, draw: o.draw} ORDER BY o.kind, o.draw) AS control_numbers
           FROM controls AS o JOIN numbered AS n ON n.cell = o.control_cell GROUP BY o.cell) AS d ON d.cell = c.cell
ORDER BY n.part, n.number, c.run_id, c."match"

-- statement: measured
SELECT p.part, p.number, p.opening_stream, g.opening_number, g.run_id, g.unit, g.match, g.attempt_id,
       game_score($scoring, g.result, g.termination, g.adjudication_cp, p.color) AS score,
       g.plies, g.result, g.termination, g.adjudication_cp, g.turns,
       first_tries(p.policy, g.first_try_legal) AS first_try_legal, g.seconds, g.move_hash
FROM game AS g JOIN parts AS p ON p.run_id = g.run_id AND p.match = g.match

-- statement: base
SELECT c.cell, c.run, c.checkpoint_id, c.checkpoint, c.intervention, c.color, m.*
FROM measured AS m JOIN cells AS c ON c.run_id = m.run_id AND c.match = m.match

-- statement: outcomes
SELECT part, number, score, termination, result = '*' AND adjudication_cp IS NOT NULL AS adjudicated, count(*) AS n,
       sum(first_try_legal) AS first_try_legal, sum(turns) FILTER (first_try_legal IS NOT NULL) AS turns
FROM base
GROUP BY ALL

-- statement: different
SELECT part, number, count(*) AS unique_games FROM (SELECT DISTINCT part, number, move_hash FROM base)
GROUP BY part, number

-- statement: table
WITH ended_games AS (
    SELECT n.cell, o.* FROM outcomes AS o JOIN numbered AS n ON n.part = o.part AND n.number = o.number
),
played AS (
    SELECT cell, whole(sum(n)) AS n, coalesce(whole(sum(n) FILTER (score = 1)), 0) AS w,
           coalesce(whole(sum(n) FILTER (score = 0.5)), 0) AS d, coalesce(whole(sum(n) FILTER (score = 0)), 0) AS l,
           coalesce(whole(sum(n) FILTER (score IS NULL)), 0) AS unscored,
           coalesce(whole(sum(n) FILTER (adjudicated)), 0) AS adjudicated,
           coalesce(whole(sum(n) FILTER (termination = 'forfeit_illegal')), 0) AS forfeits,
           100.0 * sum(first_try_legal)::DOUBLE / nullif(sum(turns), 0)::DOUBLE AS first_try_legal,
           sum(score * n) / sum(n) FILTER (score IS NOT NULL) AS mean_score
    FROM ended_games
    GROUP BY cell
),
counted AS (
    SELECT n.cell, d.unique_games FROM different AS d JOIN numbered AS n ON n.part = d.part AND n.number = d.number
),
ended AS (
    SELECT cell, string_agg(replace(termination, '_', ' ') || ' ' || round(100.0 * n / total)::BIGINT || ' %', ', '
                            ORDER BY n DESC, termination) AS ends
    FROM (SELECT cell, termination, sum(n) AS n, sum(sum(n)) OVER (PARTITION BY cell) AS total
          FROM ended_games GROUP BY cell, termination)
    GROUP BY cell
),
unedited AS (
    SELECT c.protocol, sum(o.score * o.n) / sum(o.n) FILTER (o.score IS NOT NULL) AS score
    FROM ended_games AS o JOIN (SELECT DISTINCT cell, protocol FROM cells WHERE intervention_id IS NULL) AS c USING (cell)
    GROUP BY c.protocol
),
stops AS (
    SELECT cell, string_agg(DISTINCT s.name || ' after ' || s.n || ' pairs', ', '
                            ORDER BY s.name || ' after ' || s.n || ' pairs') AS stopped
    FROM cells JOIN statistic AS s USING (run_id)
    WHERE starts_with(s.name, 'sprt:')
    GROUP BY cell
),
arm AS (
    SELECT cell, protocol, checkpoint, checkpoint_id, intervention, intervention_id, vector_name AS vector, vector_seed AS seed,
           coalesce(stands_for, cells.vector) AS added, color, engine, engine_version, level,
           opponent, "limit", opening, policy, move_limit, rules, assist, whole(sum(planned)) AS planned,
           all_evaluators(list(evaluators)) AS evaluators,
           string_agg(DISTINCT run, ', ' ORDER BY run) AS runs,
           string_agg(DISTINCT machines, ', ' ORDER BY machines) AS machines
    FROM cells
    GROUP BY ALL
),
compared AS (
    SELECT protocol, all_evaluators(list(evaluators)) AS evaluators
    FROM cells
    GROUP BY protocol
),
drawn AS (
    SELECT cell, count(*) FILTER (kind = 'random') AS random_draws, count(*) FILTER (kind = 'shuffled') AS shuffled_draws
    FROM controls GROUP BY cell
),
other_sign AS (
    SELECT DISTINCT e.cell
    FROM cells AS e
    JOIN cells AS o ON o.protocol = e.protocol AND o.source = e.source AND o.vector IS NOT DISTINCT FROM e.vector
        AND sign(o.scale) = -sign(e.scale)
),
labelled AS (
    SELECT a.cell, a.intervention || CASE WHEN min(a.added) OVER alike <> max(a.added) OVER alike
                                          THEN coalesce(' (' || r.run || ')', '') ELSE '' END AS edit
    FROM arm AS a LEFT JOIN runs AS r ON 'run:' || r.spec_hash = a.added
    WINDOW alike AS (PARTITION BY a.intervention, a.checkpoint_id)
),
remarks AS (
    SELECT DISTINCT c.cell, c.stands_for IS NOT NULL AS is_control, o.cell IS NOT NULL AS both_signs,
           NOT starts_with(c.source, 'user:') AS has_labels,
           bool_or(c.run_id IN (SELECT run_id FROM arms GROUP BY run_id HAVING count(DISTINCT color) > 1))
               OVER (PARTITION BY c.cell) AS both_colors
    FROM cells AS c LEFT JOIN other_sign AS o ON o.cell = c.cell
)
SELECT cell, checkpoint, intervention, vector, edit, seed, color, engine, engine_version, opponent, level, "limit", opening, policy,
       move_limit, rules, nullif(array_to_string(arm.evaluators, ', '), '') AS evaluator, $scoring AS scoring, n, planned, stopped, unique_games, w, d, l, unscored, adjudicated, forfeits, ends,
       first_try_legal, random_draws, shuffled_draws, runs, machines,
       nullif(concat_ws('; ',
           unfinished_text(adjudicated, n),
           CASE WHEN both_colors THEN 'each color has a row, and both are pooled in: chessreg query "wins by level"' END,
           CASE WHEN adjudicated > 0 OR assist <> 'none'
                THEN coalesce(evaluators_text(arm.evaluators, 'these games'),
                              CASE WHEN intervention_id IS NOT NULL
                                   THEN evaluators_text(compared.evaluators, 'these games and of those compared with them')
                                   END) END,
           CASE WHEN intervention_id IS NOT NULL THEN nullif(concat_ws('; ',
           CASE WHEN u.score IS NULL AND $filtered THEN 'the unedited model is not in this selection'
                WHEN u.score IS NULL THEN 'the unedited model has not played here'
                WHEN u.score < 0.2
                THEN 'the unedited model scores below 0.2: an edit that weakens it has little room to show'
                WHEN u.score > 0.8
                THEN 'the unedited model scores above 0.8: an edit that strengthens it has little room to show' END,
           CASE WHEN l = n THEN 'every game was lost, so Elo has only a bound'
                WHEN w = n THEN 'every game was won, so Elo has only a bound' END,
           CASE WHEN is_control THEN NULL
                WHEN $filtered AND coalesce(random_draws, 0) = 0
                THEN 'no random direction is in this selection; the table without filters has those that have played'
                WHEN $filtered AND shuffled_draws = 0 AND has_labels
                THEN 'no direction of shuffled labels is in this selection'
                WHEN random_draws IS NULL THEN 'no control direction has played: --intervention.control random plays one'
                WHEN random_draws = 0 THEN 'no random direction has played'
                WHEN shuffled_draws = 0 AND has_labels THEN 'no direction of shuffled labels has played' END,
           CASE WHEN NOT is_control AND random_draws BETWEEN 1 AND 4 AND $filtered
                THEN 'fewer than 5 random directions are in this selection, so their interval is too narrow'
                WHEN NOT is_control AND random_draws BETWEEN 1 AND 4
                THEN 'fewer than 5 random directions have played, so their interval is too narrow: '
                     || '--intervention.control random --intervention.control-seed N plays one more' END,
           CASE WHEN NOT is_control AND shuffled_draws BETWEEN 1 AND 4 AND $filtered
                THEN 'fewer than 5 directions of shuffled labels are in this selection, so their interval is too narrow'
                WHEN NOT is_control AND shuffled_draws BETWEEN 1 AND 4
                THEN 'fewer than 5 directions of shuffled labels have played, so their interval is too narrow: '
                     || 'run vector --source shuffled --of VECTOR --seed N makes one more' END,
           CASE WHEN NOT is_control AND NOT both_signs AND NOT $filtered
                THEN 'the same direction has not played with the opposite sign: repeat it with the negated scale' END), '') END), '') AS warning,
       checkpoint_id, intervention_id
FROM arm JOIN labelled USING (cell) JOIN played USING (cell) JOIN counted USING (cell) JOIN ended USING (cell) JOIN remarks USING (cell) LEFT JOIN drawn USING (cell)
LEFT JOIN unedited AS u ON u.protocol = arm.protocol JOIN compared ON compared.protocol = arm.protocol LEFT JOIN stops USING (cell)
ORDER BY cell

-- statement: clusters
-- A cluster is one opening: its points, and the points of the plain model and of each control from the same opening.
-- Openings with equal outcomes in every cell of a part are counted together. A game is encoded as 8 * its cell's number
-- + twice its score, or + 3 without a score, or + 4 plus its score if it was forfeited.
WITH opened AS (
    SELECT part, list_sort(list(8 * number + CASE WHEN score IS NULL THEN 3
                                                  WHEN termination IN ('forfeit_illegal', 'opponent_forfeit')
                                                  THEN 4 + score::BIGINT ELSE (2 * score)::BIGINT END)) AS games
    FROM base
    GROUP BY part, opening_stream, opening_number
),
alike AS (
    SELECT row_number() OVER () AS id, part, games, openings
    FROM (SELECT part, games, count(*) AS openings FROM opened GROUP BY ALL)
),
scored AS (
    SELECT id, part, openings, game // 8 AS number, count(*) AS scored,
           sum(CASE WHEN game % 8 < 3 THEN game % 8 / 2 ELSE game % 8 - 4 END) AS points,
           count(*) FILTER (game % 8 < 3) AS played,
           coalesce(sum(game % 8 / 2) FILTER (game % 8 < 3), 0) AS played_points
    FROM (SELECT id, part, openings, unnest(games) AS game FROM alike)
    WHERE game % 8 <> 3
    GROUP BY ALL
),
twin AS (
    SELECT DISTINCT part, number, plain_number FROM parts WHERE plain_number IS NOT NULL
),
control AS (
    SELECT o.id, o.number, c.control.kind AS kind, list(s.points ORDER BY c.control.draw) AS points,
           list(s.scored ORDER BY c.control.draw) AS scored
    FROM (SELECT part, number, unnest(control_numbers) AS control
          FROM (SELECT DISTINCT part, number, control_numbers FROM parts)) AS c
    JOIN scored AS o ON o.part = c.part AND o.number = c.number
    LEFT JOIN scored AS s ON s.id = o.id AND s.number = c.control.number
    GROUP BY ALL
)
SELECT o.part, o.number, o.points, o.scored, o.played_points, o.played, p.points AS base_points,
       p.scored AS base_scored, r.points AS random_points, r.scored AS random_scored, h.points AS shuffled_points,
       h.scored AS shuffled_scored, whole(sum(o.openings)) AS clusters
FROM scored AS o
LEFT JOIN twin AS t ON t.part = o.part AND t.number = o.number
LEFT JOIN scored AS p ON p.id = o.id AND p.number = t.plain_number
LEFT JOIN control AS r ON r.id = o.id AND r.number = o.number AND r.kind = 'random'
LEFT JOIN control AS h ON h.id = o.id AND h.number = o.number AND h.kind = 'shuffled'
GROUP BY ALL
ORDER BY ALL

-- statement: rows
SELECT run || ':' || unit AS board, run, unit, result, score, termination, plies, turns, first_try_legal, adjudication_cp, opening_number,
       intervention, color, run_id
FROM base
ORDER BY run_place(run_id), unit
