"""Widgets, one per file, each with its CSS."""
