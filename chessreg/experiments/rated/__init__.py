"""Pools of games for the kind `rating`."""
