"""Screens, one a noun."""
