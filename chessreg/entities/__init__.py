"""Nouns that a user can name: how each is added, listed, shown, merged, reproduced and removed."""
