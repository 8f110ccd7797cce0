"""The terminal UI of chessreg."""
