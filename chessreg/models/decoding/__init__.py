"""Decoding: sessions whose key-value cache lives from move to move, trees of tokens, sampled moves, legal mass."""
