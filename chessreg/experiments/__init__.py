"""The kinds of experiment, one package or module each. `runs.kind` discovers them."""
