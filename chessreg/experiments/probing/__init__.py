"""The work behind `probe`: labelled activations, fitting, scoring, boards."""
