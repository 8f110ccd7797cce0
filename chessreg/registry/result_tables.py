"""The names of the tables that hold the results of runs. Imports no SQLAlchemy, so that kinds load without it."""

RESULT_TABLES = ("score", "trial", "game", "illegal_attempt", "rating", "prediction", "metric_point", "statistic")
