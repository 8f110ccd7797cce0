"""Jobs: the queue, the supervisor of a machine, and executors (local, Slurm, Ray). Kinds are known by name only."""
