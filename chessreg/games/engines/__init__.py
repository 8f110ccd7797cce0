"""Engines and matches: UCI processes, pools of opponents, games between them, ratings and stopping rules."""
