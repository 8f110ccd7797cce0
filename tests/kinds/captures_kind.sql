-- title: captures after captures
-- aliases: captures
-- paper: none: an example of a kind of two files
-- kinds: captures
-- made by: chessreg run tests/kinds/captures_kind.py
-- columns:
--   run: the run
--   plies: of each game at most
--   games [games]: random games
--   share: captures among the plies that follow one
--   p: how often shuffled plies of the same games have at least this share
--   n [plies]: plies that follow a capture
--   captures [plies]: of all games
--   run_id [hidden]: its id

-- statement: base
SELECT dense_rank() OVER (ORDER BY r.created_at, r.run_id) AS cell, r.run, r.run_id, r.plies, r.shuffles, p.unit,
       p.attempt_id, p.captures, NULL::UUID AS checkpoint_id
FROM captures_run AS r
JOIN scoped AS s ON s.run_id = r.run_id
JOIN captures_prediction AS p ON p.run_id = r.run_id

-- statement: table
SELECT b.cell, b.run, b.plies, count(*) AS games, any_value(t.value) AS share, any_value(t.p) AS p, any_value(t.n) AS n,
       sum(len(b.captures) - len(replace(b.captures, '1', '')))::BIGINT AS captures, b.run_id
FROM base AS b
LEFT JOIN captures_statistic AS t ON t.run_id = b.run_id AND t.name = 'capture after capture'
GROUP BY b.cell, b.run, b.plies, b.run_id
ORDER BY b.cell

-- statement: rows
SELECT run, unit, captures, run_id FROM base ORDER BY run_id, unit
