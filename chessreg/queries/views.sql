-- Views over the registry's tables, for the catalogue and for users' SQL. Each begins with a `-- view:` line.

-- view: named
-- The current name of each named object. A name that several objects share is written name@host, or name@ID if they
-- also share the host.
SELECT noun, target,
       CASE WHEN count(*) OVER (PARTITION BY noun, value) = 1 THEN value
            WHEN count(*) OVER (PARTITION BY noun, value, host) = 1 THEN value || '@' || host
            ELSE value || '@' || right(target::VARCHAR, 6) END AS name
FROM (
    SELECT noun, target, value, host,
           row_number() OVER (PARTITION BY noun, target ORDER BY "at" DESC, value) AS place
    FROM annotated
    WHERE word = 'name'
)
WHERE place = 1

-- view: annotated
-- The annotations in effect now, from the registry's view annotation_now.
SELECT noun, TRY_CAST(target AS UUID) AS target, word, value, host, "at" FROM annotation_now

-- view: tagged
SELECT noun, target,
       string_agg(value, ', ' ORDER BY value) FILTER (word = 'tag') AS tags,
       bool_or(word = 'archive') AS archived,
       bool_or(word = 'invalid') AS invalid
FROM annotated
GROUP BY noun, target

-- view: runs
-- Every run with its state and units done, from the registry's view run_now.
WITH tried AS (
    SELECT a.run_id, count(*) AS attempts, string_agg(DISTINCT m.host, ', ' ORDER BY m.host) AS machines
    FROM attempt AS a JOIN machine AS m ON m.id = a.machine_id
    GROUP BY a.run_id
)
SELECT r.id AS run_id, coalesce(n.name, right(replace(r.id::VARCHAR, '-', ''), 6)) AS run, r.kind, r.version,
       s.state, s.done, r.units AS planned, t.tags,
       coalesce(t.archived, false) AS archived, coalesce(t.invalid, false) AS invalid,
       coalesce(tried.attempts, 0) AS attempts, tried.machines, r.created_at, r.completed_at, r.spec_hash, r.spec
FROM run AS r
JOIN run_now AS s ON s.run_id = r.id
LEFT JOIN named AS n ON n.noun = 'run' AND n.target = r.id
LEFT JOIN tagged AS t ON t.noun = 'run' AND t.target = r.id
LEFT JOIN tried ON tried.run_id = r.id

-- view: run_order
-- The place of every run in time. Ids are hashes, so displayed rows are never ordered by id.
SELECT id AS run_id, row_number() OVER (ORDER BY created_at, id) AS place FROM run

-- view: checkpoints
-- Every checkpoint. `place` orders checkpoints by name; those without a name follow, ordered by time. `flops`: model
-- FLOPs of training in this registry, forward and backward: 6 per weight of the blocks and token, padding included,
-- without the products of attention. A FEN encoder without a recorded count reads 78 tokens per move. `import_loss`:
-- nats per token on 20 sample games at import. `import_entropy`: entropy of single tokens on these games.
-- `import_legal`: share of legal moves on these games.
SELECT c.id AS checkpoint_id,
       coalesce(n.name, CASE WHEN c.source_format = 'external' THEN json_extract_string(c.detail, '$.player') END,
                right(replace(c.id::VARCHAR, '-', ''), 6)) AS checkpoint,
       c.architecture, c.layers, c.d_model, c.heads, c.parameters, c.parameters_without_embeddings, c.tokens_seen,
       6.0 * c.parameters_without_embeddings
           * coalesce(TRY_CAST(json_extract_string(c.detail, '$.source.tokens_read') AS BIGINT),
                      CASE WHEN c.architecture = 'fen-encoder' AND c.run_id IS NOT NULL THEN 78 * c.tokens_seen END) AS flops,
       c.residual, c.tokenizer, coalesce(json_extract_string(c.detail, '$.shape.attention'), 'causal') AS attention,
       c.source_format, c.source_format = 'random-init' AS random_init,
       TRY_CAST(json_extract_string(c.detail, '$.games.loss') AS DOUBLE) AS import_loss,
       TRY_CAST(json_extract_string(c.detail, '$.games.entropy') AS DOUBLE) AS import_entropy,
       TRY_CAST(json_extract_string(c.detail, '$.games.legal') AS DOUBLE) AS import_legal, c.parent_id, t.tags,
       coalesce(t.archived, false) AS archived, coalesce(t.invalid, false) AS invalid, c.artifact, c.created_at,
       coalesce(n.name, CASE WHEN c.source_format = 'external' THEN json_extract_string(c.detail, '$.player') END) AS own_name,
       row_number() OVER (ORDER BY own_name, c.created_at, c.id) AS place
FROM checkpoint AS c
LEFT JOIN named AS n ON n.noun = 'checkpoint' AND n.target = c.id
LEFT JOIN tagged AS t ON t.noun = 'checkpoint' AND t.target = c.id

-- view: datasets
-- Every dataset and every part of one. `reference` is the form in specs, `dataset` the displayed name: NAME or
-- NAME:PART. If two names refer to the same games, the earlier one is used, so that a run's input is one row.
WITH called AS (
    SELECT d.id, 'dataset:' || d.identity AS reference, coalesce(n.name, d.source) AS dataset, d.games, d.created_at
    FROM dataset AS d LEFT JOIN named AS n ON n.noun = 'dataset' AND n.target = d.id
), parts AS (
    SELECT * FROM called
    UNION ALL
    SELECT c.id, c.reference || '[' || s.seed || ',' || s.low || ',' || s.high || ']', c.dataset || ':' || s.name, s.games,
           s.created_at
    FROM called AS c JOIN split AS s ON s.dataset_id = c.id
)
SELECT id AS dataset_id, reference, dataset, games FROM parts
QUALIFY row_number() OVER (PARTITION BY reference ORDER BY created_at, dataset) = 1

-- view: interventions
-- Every intervention, with a one-line description for tables: probe:piece L3-6 x1.5 (last token). `blank`: coefficient
-- of the empty square's direction, if used. `vector`: the run whose vectors are added; `vector_name`: its name, and the
-- seed of random directions, which is also in `vector_seed`. `stands_for`: the run whose vectors a control replaces.
-- `side`: the class of a probe's vectors if they are of a single class. `protocol`: the settings of edits at sites in
-- which Davis's paper, published code and corrected version differ.
SELECT i.id AS intervention_id, i.checkpoint_id, i.source, i.scale, i.scale_rule, i.token_mask, i.layers, i.input_references,
       json_extract_string(i.input_references, '$[0]') AS vector,
       whole(CASE WHEN i.source = 'random' THEN json_extract_string(i.detail, '$.control_seed')
                  WHEN regexp_matches(i.source, '^(random|shuffled):') THEN json_extract_string(v.spec, '$.seed') END)
           AS vector_seed,
       coalesce(n.name, right(replace(o.id::VARCHAR, '-', ''), 6)) || coalesce(' (seed ' || vector_seed || ')', '') AS vector_name,
       CASE WHEN i.source = 'random' THEN json_extract_string(i.input_references, '$[0]')
            WHEN regexp_matches(i.source, '^(random|shuffled):') THEN json_extract_string(v.spec, '$.of') END AS stands_for,
       nullif(json_extract_string(i.detail, '$.layers_label'), '') AS layers_label,
       json_extract_string(i.detail, '$.protocol') AS protocol,
       nullif(TRY_CAST(json_extract_string(i.detail, '$.blank') AS DOUBLE), 0) AS blank,
       nullif(json_extract_string(v.spec, '$.side'), 'both') AS side,
       i.source || ' L' || layers_text(TRY_CAST(i.layers AS BIGINT[])) || ' x' || scale_text(i.scale)
       || CASE WHEN i.scale_rule IN ('constant', 'none', 'single_scale', 'times-mean') THEN '' ELSE ' ' || i.scale_rule END
       || CASE i.token_mask WHEN 'all' THEN '' WHEN 'last' THEN ' (last token)' ELSE ' (' || i.token_mask || ')' END
       || coalesce(' blank x' || scale_text(blank), '') || coalesce(' ' || side || ' class alone', '') AS intervention
FROM intervention AS i
LEFT JOIN run AS o ON 'run:' || o.spec_hash = json_extract_string(i.input_references, '$[0]')
LEFT JOIN run AS v ON v.id = o.id AND v.kind = 'vector'
LEFT JOIN named AS n ON n.noun = 'run' AND n.target = o.id

-- view: skipped_edits
-- Edit runs that skipped every state: the number of states per reason, with a hint for each reason.
SELECT r.run_id, r.run, r.kind, s.states,
       CASE s.reason WHEN 'illegal' THEN 'the model''s most probable move is illegal'
            WHEN 'no square' THEN 'its most probable token names no square'
            WHEN 'empty' THEN 'its most probable token names an empty square'
            WHEN 'king' THEN 'the king is about to move'
            WHEN 'no moves' THEN 'the modified board has no legal move'
            WHEN 'too long' THEN 'the game up to there is longer than the model''s context'
            WHEN 'too short' THEN 'the game ends before the later board'
            ELSE coalesce(s.reason, 'unknown') END AS reason,
       CASE s.reason WHEN 'king' THEN '--king include' WHEN 'no moves' THEN '--guard author'
            WHEN 'too long' THEN 'states earlier in the game' WHEN 'too short' THEN 'a smaller --future, or longer games'
            WHEN 'illegal' THEN 'a --checkpoint that plays legal moves'
            WHEN 'no square' THEN 'a --checkpoint that plays legal moves'
            WHEN 'empty' THEN 'a --checkpoint that plays legal moves' END AS hint
FROM (SELECT run_id, json_extract_string(detail, '$.skipped') AS reason, count(*) AS states FROM trial
      WHERE condition = 'skipped' AND run_id NOT IN (SELECT run_id FROM trial WHERE condition <> 'skipped')
      GROUP BY ALL) AS s
JOIN runs AS r ON r.run_id = s.run_id AND r.kind IN ('edit', 'edit-next-token')

-- view: probes
-- Every probe, with the number of its game phase; NULL: all phases.
SELECT p.* EXCLUDE (detail), TRY_CAST(json_extract_string(p.detail, '$.phase') AS BIGINT) AS phase FROM probe AS p

-- view: saes
-- Every SAE, with its expansion: latents per dimension of the residual stream.
SELECT s.* EXCLUDE (detail), TRY_CAST(json_extract_string(s.detail, '$.expansion') AS BIGINT) AS expansion FROM sae AS s

-- view: probe_caches
-- The caches that each probe run was fitted and tested on. `settings`: the caches' settings without the model and its
-- layers and hook points, so that they are equal for seeds and random-init controls. A cache that is not in the
-- registry is represented by its reference. `test_settings`: the settings of the test cache alone. `fitted_on` and
-- `tested_on`: dataset and part in words, then the settings that differ from the defaults of `run cache`; NULL:
-- unknown.
WITH named AS (
    SELECT id AS run_id, name, json_extract_string(spec, '$.' || name) AS reference
    FROM (SELECT id, spec, unnest(['cache', 'test_cache']) AS name FROM run
          WHERE kind = 'probe' OR ends_with(kind, '-probe'))
),
told AS (
    SELECT n.run_id, n.name,
           coalesce(settings_text(c.spec, ['checkpoint', 'layers', 'hook_points', 'seed', 'replicate']), n.reference,
                    'none') AS settings,
           CASE WHEN c.id IS NOT NULL THEN concat_ws(', ', coalesce(d.dataset, json_extract_string(c.spec, '$.dataset')),
               nullif(json_extract_string(c.spec, '$.sites'), 'dots'),
               nullif(json_extract_string(c.spec, '$.alignment'), 'post-ply'),
               'at most ' || nullif(json_extract_string(c.spec, '$.games'), '10000') || ' games',
               'min_plies ' || nullif(json_extract_string(c.spec, '$.min_plies'), '0'),
               'keep_duplicates ' || nullif(json_extract_string(c.spec, '$.keep_duplicates'), 'false'),
               'skip_sites ' || nullif(json_extract_string(c.spec, '$.skip_sites'), '0'),
               'max_sites ' || json_extract_string(c.spec, '$.max_sites'),
               'last_sites ' || json_extract_string(c.spec, '$.last_sites'),
               nullif(json_extract_string(c.spec, '$.dtype'), 'float16')) END AS words
    FROM named AS n
    LEFT JOIN run AS c ON c.kind = 'cache' AND 'run:' || c.spec_hash = n.reference
    LEFT JOIN datasets AS d ON d.reference = json_extract_string(c.spec, '$.dataset')
)
SELECT run_id, string_agg(name || ': ' || settings, '; ' ORDER BY name) AS settings,
       any_value(settings) FILTER (name = 'test_cache') AS test_settings,
       any_value(words) FILTER (name = 'cache') AS fitted_on, any_value(words) FILTER (name = 'test_cache') AS tested_on
FROM told
GROUP BY run_id

-- view: rated_sides
-- The sides of matches that a rating counts.
SELECT run_id, unit, player, TRY_CAST(json_extract_string(side, '$[0]') AS UUID) AS side_run_id,
       TRY_CAST(json_extract_string(side, '$[1]') AS BIGINT) AS match
FROM (SELECT run_id, unit, player, unnest(TRY_CAST(json_extract(detail, '$.sides') AS JSON[])) AS side FROM rating)

-- view: skill_classes
-- The skill classes of a run's probes: the requested strata, and in words the edges of the lowest and the highest bin,
-- each as a range over all strata.
WITH edged AS (
    SELECT run_id, json_extract_string(any_value(detail), '$.skill.strata') AS strata,
           TRY_CAST(json_extract(any_value(detail), '$.skill.edges.*[1]') AS DOUBLE[]) AS low,
           TRY_CAST(json_extract(any_value(detail), '$.skill.edges.*[#-2]') AS DOUBLE[]) AS high
    FROM probe WHERE label IN ('skill', 'skill-shuffled') GROUP BY run_id
)
SELECT run_id, coalesce(strata, 'unknown') AS strata,
       'low to ' || span_text(low) || ', high from ' || span_text(high) AS labels
FROM edged

-- view: skill_strata
-- The strata that a run requested for its skill classes; NULL: not requested.
SELECT id AS run_id, json_extract_string(spec, '$.skill.strata') AS strata FROM run

-- view: run_checkpoint
-- The checkpoint that a run read, if it read one.
SELECT DISTINCT i.run_id, c.id AS checkpoint_id
FROM run_input AS i JOIN checkpoint AS c ON c.artifact = i.digest
WHERE i.name = 'checkpoint'

-- view: shared_games
-- The overlap of a run's evaluated games with the training games of its model (and probe): whole games, openings of 20
-- plies, distinct positions. NULL: unknown. `overlap`: the number of whole games, in words.
WITH detailed AS (
    SELECT run_id, any_value(detail) AS detail FROM probe GROUP BY run_id
    UNION ALL SELECT run_id, any_value(detail) AS detail FROM vector GROUP BY run_id
    UNION ALL SELECT run_id, any_value(detail) AS detail FROM sae GROUP BY run_id
),
counted AS (
    SELECT run_id, maker, name,
           whole(json_extract_string(detail, '$.overlap."' || maker || '"."' || name || '"')) AS value
    FROM detailed, (SELECT unnest(['checkpoint', 'probe']) AS maker),
         (SELECT unnest(['games', 'of_games', 'openings', 'positions']) AS name)
    UNION ALL
    SELECT run_id, split_part(name, '/', 2) AS maker, split_part(name, '/', 3) AS name, whole(max(value)) AS value
    FROM metric_point WHERE starts_with(name, 'overlap/') GROUP BY ALL
    UNION ALL
    SELECT run_id, split_part(name, '_', 2) AS maker, substr(name, 10 + length(maker)) AS name,
           whole(max(value)) AS value
    FROM metric_point WHERE starts_with(name, 'overlap_') GROUP BY ALL
),
known AS (
    SELECT run_id, max(value) FILTER (maker = 'checkpoint' AND name = 'games') AS model_games,
           max(value) FILTER (maker = 'checkpoint' AND name = 'openings') AS model_openings,
           max(value) FILTER (maker = 'checkpoint' AND name = 'positions') AS model_positions,
           max(value) FILTER (maker = 'probe' AND name = 'games') AS probe_games,
           max(value) FILTER (maker = 'probe' AND name = 'openings') AS probe_openings,
           max(value) FILTER (maker = 'probe' AND name = 'positions') AS probe_positions,
           bool_or(maker = 'probe' AND value IS NOT NULL) AS of_probe
    FROM counted GROUP BY run_id
)
SELECT *, 'model ' || coalesce(model_games::VARCHAR, 'unknown')
       || CASE WHEN of_probe THEN ', probe ' || coalesce(probe_games::VARCHAR, 'unknown') ELSE '' END AS overlap
FROM known

-- view: match_rules
-- The rules of a match that differ from the defaults of `run play`, in words; NULL: all are defaults.
SELECT run_id, number, nullif(concat_ws(', ',
    CASE WHEN temperatures <> CASE WHEN starts_with(policy, 'retry')
                                   THEN list_transform(range(len(temperatures)), lambda n: round(least(n / 5 + 0.001, 0.5), 6))
                                   ELSE [1.0] END
         THEN 'temperature ' || array_to_string(list_distinct(temperatures), ' ') END,
    'context ' || nullif(context, 'adjudicate'), 'results written ' || nullif(resignation, 'counts'),
    nullif(precision, 'float32'), 'adjudication ' || nullif(adjudication, 'nodes=100000'),
    'evaluated at move ' || nullif(adjudicate_at, 0), nullif(move_tokens, 0) || ' tokens a try',
    CASE WHEN claim_draws THEN 'draws claimed' END, 'assist ' || assist), '') AS rules, coalesce(assist, 'none') AS assist
FROM (
    SELECT run_id, number, policy, TRY_CAST(json_extract(detail, '$.temperatures') AS DOUBLE[]) AS temperatures,
           json_extract_string(detail, '$.context') AS context, json_extract_string(detail, '$.resignation') AS resignation,
           json_extract_string(detail, '$.precision') AS precision,
           json_extract_string(detail, '$.adjudication') AS adjudication,
           whole(json_extract_string(detail, '$.adjudicate_at')) AS adjudicate_at,
           whole(json_extract_string(detail, '$.move_tokens')) AS move_tokens,
           json_extract_string(detail, '$.assist') AS assist,
           TRY_CAST(json_extract_string(detail, '$.claim_draws') AS BOOLEAN) AS claim_draws
    FROM "match"
)

-- view: match_evaluators
-- The engines that evaluated positions of a match: for adjudication, of draws, or before moves that they then played.
SELECT d.run_id, d.number,
       list(e.name || ' ' || e.version || coalesce(' (sha256 ' || left(e.binary_sha256, 12) || ')', '')
            ORDER BY e.name, e.version, e.binary_sha256) AS evaluators
FROM (SELECT run_id, number, unnest(json_extract_string(detail, '$.evaluator_engine_ids[*]')) AS engine_id FROM "match") AS d
JOIN engine AS e ON e.id = TRY_CAST(d.engine_id AS UUID)
GROUP BY d.run_id, d.number

-- view: arms
-- One row per arm of a match, with everything that its games share. `opening_stream`: the sequence that the games'
-- opening numbers refer to. Games with equal stream and number started alike, in any run. From the standard position,
-- every game of a match is a separate opening, paired with the game of the same number in matches of this color against
-- this opponent. The opening seed of an import is unknown, so its stream is not shared with another run. `evaluators`:
-- the engines that evaluated positions, NULL if none did or if it was not recorded.
SELECT m.run_id, m.number AS match, m.checkpoint_id, coalesce(c.checkpoint, m.player) AS checkpoint,
       CASE WHEN m.checkpoint_id IS NULL THEN m.player ELSE c.own_name END AS own_name, c.place AS checkpoint_place,
       m.player, m.intervention_id, coalesce(i.intervention, 'none') AS intervention, i.source, i.layers, i.scale, i.token_mask,
       i.vector, i.vector_name, i.vector_seed, i.stands_for, m.color, m.engine_id, e.name AS engine,
       e.version AS engine_version, m.opponent, m.level, m."limit", m.opening, m.opening_seed,
       CASE WHEN starts_with(u.kind, 'imported-') THEN m.run_id::VARCHAR
            ELSE concat_ws(' ', m.opening, m.opening_seed, CASE WHEN m.opening = 'standard' THEN m.opponent END,
                           CASE WHEN m.opening = 'standard' THEN m.color END) END AS opening_stream,
       m.policy, m.move_limit, r.rules, coalesce(r.assist, 'none') AS assist, m.planned,
       v.evaluators
FROM "match" AS m
LEFT JOIN run AS u ON u.id = m.run_id
LEFT JOIN match_rules AS r ON r.run_id = m.run_id AND r.number = m.number
LEFT JOIN checkpoints AS c ON c.checkpoint_id = m.checkpoint_id
LEFT JOIN interventions AS i ON i.intervention_id = m.intervention_id
LEFT JOIN engine AS e ON e.id = m.engine_id
LEFT JOIN match_evaluators AS v ON v.run_id = m.run_id AND v.number = m.number

-- view: imported_arms
-- Facts about the rows of an imported third-party table (kinds imported-aggregates and imported-sweep).
SELECT run_id, number AS match, json_extract_string(detail, '$.metric') AS metric,
       json_extract_string(detail, '$.cell') AS "table", json_extract_string(detail, '$.levels') AS bins,
       json_extract_string(detail, '$.name') AS author_name,
       TRY_CAST(json_extract_string(detail, '$.truncated_name') AS BOOLEAN) AS truncated,
       json_extract_string(detail, '$.colors') AS colors
FROM "match"

-- view: imported_training
-- The training script's settings that are stored in an imported checkpoint.
SELECT c.id AS checkpoint_id, s.config IS NOT NULL AS script_told,
       json_extract_string(s.config, '$.decay_lr') = 'true' AS script_decays,
       TRY_CAST(json_extract_string(s.config, '$.learning_rate') AS DOUBLE) AS script_learning_rate,
       TRY_CAST(json_extract_string(s.config, '$.min_lr') AS DOUBLE) AS script_final_learning_rate,
       whole(json_extract_string(s.config, '$.warmup_iters')) AS script_warmup_steps,
       TRY_CAST(json_extract_string(s.config, '$.weight_decay') AS DOUBLE) AS script_weight_decay,
       TRY_CAST(json_extract_string(s.config, '$.beta1') AS DOUBLE) AS script_beta1,
       TRY_CAST(json_extract_string(s.config, '$.beta2') AS DOUBLE) AS script_beta2,
       TRY_CAST(json_extract_string(s.config, '$.grad_clip') AS DOUBLE) AS script_grad_clip,
       TRY_CAST(json_extract_string(s.config, '$.batch_size') AS INTEGER)::BIGINT
           * coalesce(TRY_CAST(json_extract_string(s.config, '$.gradient_accumulation_steps') AS INTEGER), 1)
           AS script_batch_rows,
       whole(coalesce(json_extract_string(c.detail, '$.source.iter_num'), json_extract_string(s.config, '$.max_iters')))
           AS script_steps,
       TRY_CAST(json_extract_string(s.config, '$.dropout') AS DOUBLE) AS script_dropout
FROM checkpoint AS c JOIN (SELECT id, json_extract(detail, '$.source.config') AS config FROM checkpoint) AS s ON s.id = c.id

-- view: games
-- Every game with its run and its arm, and the model's score under both scoring policies.
SELECT g.run_id, u.run, g.unit, a.* EXCLUDE (run_id, planned, own_name, checkpoint_place), g.opening_number, g.opening_plies,
       g.plies, g.result, g.termination, g.adjudication_cp, g.turns,
       first_tries(a.policy, g.first_try_legal) AS first_try_legal,
       game_score('paper', g.result, g.termination, g.adjudication_cp, a.color) AS score_paper,
       game_score('author-2024', g.result, g.termination, g.adjudication_cp, a.color) AS score_author_2024,
       g.seconds, g.tries, g.moves, g.attempt_id, g.detail
FROM game AS g JOIN arms AS a ON a.run_id = g.run_id AND a.match = g.match JOIN runs AS u ON u.run_id = g.run_id

-- view: ply
-- Every ply of every game: the side that moved, the move in UCI, and the number of tries in a turn of the model.
-- `assist`: Stockfish moved in the model's place, and the model made no try.
WITH packed AS (
    SELECT g.run_id, g.unit, g.opening_plies, g.tries, a.color, r.assist, hex(g.moves) AS digits,
           unnest(range(octet_length(g.moves) // 2)) AS ply
    FROM game AS g JOIN "match" AS a ON a.run_id = g.run_id AND a.number = g.match
    JOIN match_rules AS r ON r.run_id = a.run_id AND r.number = a.number
),
coded AS (
    SELECT *, TRY_CAST('0x' || substr(digits, 4 * ply + 3, 2) || substr(digits, 4 * ply + 1, 2) AS INTEGER) AS code,
           opening_plies + (opening_plies + (color = 'black')::INTEGER) % 2 AS first_turn
    FROM packed
),
turns AS (
    SELECT *, CASE WHEN ply >= opening_plies AND (ply % 2 = 1) = (color = 'black')
                   THEN TRY_CAST('0x' || nullif(substr(hex(tries), 2 * ((ply - first_turn) // 2) + 1, 2), '') AS INTEGER)
                   END AS taken
    FROM coded
)
SELECT run_id, unit, ply, CASE WHEN ply % 2 = 0 THEN 'white' ELSE 'black' END AS color,
       CASE WHEN ply < opening_plies THEN 'opening'
            WHEN (ply % 2 = 1) = (color = 'black') THEN CASE WHEN taken = 0 AND assist <> 'none' THEN 'assist' ELSE 'model' END
            ELSE 'opponent' END AS mover,
       square_text(code & 63) || square_text((code >> 6) & 63) || substr('nbrq', (code >> 12) - 1, (code >> 12 > 1)::INTEGER) AS uci,
       taken AS tries
FROM turns
