"""Settings that several kinds share: which games, classes of skill, interventions, and the check for overlap."""
