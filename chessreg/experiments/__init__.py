"""The kinds of experiment, one module each. A module here needs no registration anywhere else (`jobs.kind`)."""
