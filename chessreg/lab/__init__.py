"""One position at a time, looked at from every side: what the terminal UI's lab and its boards of edits ask a model."""
