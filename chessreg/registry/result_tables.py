"""Names of the tables with results of runs. This module does not import SQLAlchemy, so that kinds load fast."""

RESULT_TABLES = ("score", "trial", "game", "illegal_attempt", "rating", "prediction", "metric_point", "statistic")
