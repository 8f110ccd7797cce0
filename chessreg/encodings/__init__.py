"""Encodings: how chess is written for a model, and where in what is written a board is looked at."""
