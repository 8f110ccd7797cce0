"""Chess itself: moves, SAN, openings, attacked squares, how games end, and boards as pictures."""
