"""Import paths of older kind files; `chessreg.kinds` is the present one."""
