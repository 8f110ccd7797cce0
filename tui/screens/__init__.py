"""The screens of the terminal UI, one module per screen or noun."""
