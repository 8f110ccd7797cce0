"""Boards: moves, SAN, openings, attacked squares, the end of a game, and pictures."""
