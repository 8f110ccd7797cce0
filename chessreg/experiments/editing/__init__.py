"""The work behind `edit`: conditions, texts, masses, boards."""
