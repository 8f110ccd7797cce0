"""chessreg: a registry for experiments on chess-playing language models."""
