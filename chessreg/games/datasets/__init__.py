"""Datasets of games and positions: source files in, Parquet out, rows, labels and classes of skill."""
