"""Settings that several kinds share: selection of games, token positions, skill classes, prompts, policies and
overlap."""
