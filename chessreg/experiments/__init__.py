"""The kinds of experiment, one package or module each, found by themselves (`runs.kind`)."""
