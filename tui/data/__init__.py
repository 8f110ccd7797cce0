"""Functions that read the registry and return the rows, columns and charts shown by the screens."""
