"""Spec → units → rows: what a kind of experiment is, and how its runs are planned, done, resumed and ingested."""
