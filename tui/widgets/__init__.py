"""Widgets, one a file, each with its CSS."""
