"""The SQL macros, by name. They use no table and no view."""

MACROS = {
    # NULL for a value that cannot be cast, so that one invalid row does not fail a query.
    "whole": "(x) AS TRY_CAST(x AS BIGINT)",
    "exact": "(probability) AS TRY_CAST(probability AS DECIMAL(18, 15))",  # sums are the same in any order
    # The decimal of a double's shortest text. From 0 to 1, the direct cast is four times faster and gives the same,
    # except near a half of the last digit: x * 1e15 as computed and the text each differ from its true value by at
    # most 0.1111 * x, in units of the last digit.
    "exact_double": """(x) AS CASE WHEN x BETWEEN 0 AND 1 AND abs(x * 1e15 - floor(x * 1e15) - 0.5) > 0.23 * x
    THEN TRY_CAST(x AS DECIMAL(18, 15)) ELSE TRY_CAST(x::VARCHAR AS DECIMAL(18, 15)) END""",
    # The score of the model's side, scored like `adjudication`. `paper` is the rule in Karvonen 2024. `author-2024` is
    # the behaviour of the paper's code: draws are left out of the mean, and so is exactly 100 centipawns at the move
    # limit; fewer centipawns there are a loss.
    "game_score": """(scoring, result, termination, cp, color) AS CASE
    WHEN termination = 'forfeit_illegal' THEN 0.0::DOUBLE
    WHEN result = '1-0' THEN (color = 'white')::INTEGER::DOUBLE
    WHEN result = '0-1' THEN (color = 'black')::INTEGER::DOUBLE
    WHEN result = '1/2-1/2' THEN CASE WHEN scoring = 'paper' THEN 0.5::DOUBLE END
    WHEN cp IS NULL THEN NULL
    WHEN (CASE WHEN color = 'white' THEN cp ELSE -cp END) > 100 THEN 1.0::DOUBLE
    WHEN scoring = 'paper' AND (CASE WHEN color = 'white' THEN cp ELSE -cp END) >= -100 THEN 0.5::DOUBLE
    WHEN (CASE WHEN color = 'white' THEN cp ELSE -cp END) = 100 THEN NULL
    ELSE 0.0::DOUBLE END""",
    # Legal first tries of a game. NULL for the policies that choose among the legal moves, where every try is legal.
    "first_tries": "(policy, legal) AS CASE WHEN coalesce(policy, '') NOT IN ('legal', 'trie') THEN legal END",
    # The note on games, out of n, that were scored by the engine's evaluation. A model that already loses nearly all of
    # them gains nothing from a stronger opponent.
    "unfinished_text": """(adjudicated, n) AS CASE
    WHEN 2 * adjudicated > n
        THEN 'most games are unfinished and scored by Stockfish''s evaluation (column adjudicated): more may end with '
             || 'a higher --move-limit, as far as the model''s context reaches, or, if the model scores above 0.2, '
             || 'against a stronger opponent (chessreg engine ladder)'
    WHEN adjudicated > 0 THEN 'unfinished games are scored by Stockfish''s evaluation (column adjudicated)' END""",
    # The different engines in lists of them.
    "all_evaluators": "(lists) AS list_sort(list_distinct(flatten(lists)))",
    # The note on a row whose positions several engines evaluated. `games` names its games.
    "evaluators_text": """(evaluators, games) AS CASE WHEN len(evaluators) > 1
    THEN 'different engines evaluated positions of ' || games || ': ' || array_to_string(evaluators, ', ') END""",
    "square_text": "(square) AS substr('abcdefgh', square % 8 + 1, 1) || (square // 8 + 1)",
    # 1.5 and 2, not 1.500000 and 2.0
    "scale_text": """(scale) AS
    coalesce(CASE WHEN scale = trunc(scale) THEN whole(scale)::VARCHAR END, scale::VARCHAR)""",
    # the smallest and the largest number, as 1364-1500, or a single number if they are equal
    "span_text": """(numbers) AS CASE
    WHEN round(list_min(numbers)) = round(list_max(numbers)) THEN whole(round(list_min(numbers)))::VARCHAR
    ELSE whole(round(list_min(numbers))) || '-' || whole(round(list_max(numbers))) END""",
    # 3-6 for consecutive layers, otherwise 5,7,9
    "layers_text": """(layers) AS CASE
    WHEN len(layers) > 1 AND list_max(layers) - list_min(layers) = len(layers) - 1
        THEN list_min(layers) || '-' || list_max(layers)
    ELSE array_to_string(layers, ',') END""",
    # The settings of a spec as one text, except the names in `without`.
    "settings_text": """(spec, without) AS list_aggregate(list_transform(
    list_sort(list_filter(json_keys(spec), lambda name: NOT list_contains(without, name))),
    lambda name: name || '=' || coalesce(json_extract(spec, '$."' || name || '"')::VARCHAR, 'null')),
    'string_agg', '; ')""",
    # Davis's index of a position in the residual stream: 0 for the embeddings, L for the output of the L-th block, NULL
    # for the final LayerNorm.
    "residual_index": """(hook_point, layer) AS CASE
    WHEN ends_with(hook_point, 'hook_resid_pre') OR ends_with(hook_point, 'hook_embed') THEN layer
    WHEN ends_with(hook_point, 'hook_resid_post') THEN layer + 1 END""",
    # Item `place` of an array of little-endian int32s in hexadecimal digits.
    "int32_of": """(digits, place) AS whole(
    '0x' || substr(digits, 8 * place + 7, 2) || substr(digits, 8 * place + 5, 2)
    || substr(digits, 8 * place + 3, 2) || substr(digits, 8 * place + 1, 2))""",
    # The name of a probe's class. For pieces, class = value + 6, with values from -6 (black king) to 6 (white king).
    # The owner (`My`, `Opp.`) follows from the token positions: White is to move at `dots` and Black at `even-spaces`,
    # which other encodings call `white-turns` and `black-turns`.
    "class_text": """(label, positions, class) AS CASE
    WHEN label = 'color' AND class < 3 THEN ['Black', 'Blank', 'White'][class + 1]
    WHEN label = 'type' AND class < 7 THEN ['Pawn', 'Knight', 'Bishop', 'Rook', 'Queen', 'King', 'Blank'][class + 1]
    WHEN label <> 'piece' THEN 'class ' || class
    WHEN class = 6 THEN 'Blank'
    ELSE CASE WHEN positions IN ('dots', 'odd-spaces', 'white-turns') THEN if(class > 6, 'My ', 'Opp. ')
              WHEN positions IN ('even-spaces', 'black-turns') THEN if(class < 6, 'My ', 'Opp. ')
              ELSE if(class > 6, 'White ', 'Black ') END
         || ['Pawn', 'Knight', 'Bishop', 'Rook', 'Queen', 'King'][abs(class - 6)] END""",
}
