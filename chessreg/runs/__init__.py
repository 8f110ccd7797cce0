"""Runs: the definition of a kind of experiment, and how its specs are resolved, executed, resumed and ingested."""
