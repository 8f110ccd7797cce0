"""Engines and matches: UCI processes, engine pools, self-play, ratings and stopping rules."""
