"""Decoding: sessions with a key-value cache across moves, token trees, sampled moves, legal move mass."""
