"""Import paths of earlier kind files; `chessreg.kinds` is the present one."""
