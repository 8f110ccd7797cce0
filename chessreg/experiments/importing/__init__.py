"""Others' results on their way into the registry: players, records, reports."""
