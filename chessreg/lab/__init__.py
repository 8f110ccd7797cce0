"""Questions about one position at a time, asked by the terminal UI's lab and its boards of edits."""
