"""`python -m chessreg`: the command, where it is not on the PATH."""

from chessreg.cli import main

if __name__ == "__main__":
    main()
