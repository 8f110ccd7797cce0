"""Datasets of games and positions: source files in, Parquet out; labels and skill classes."""
