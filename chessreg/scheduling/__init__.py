"""Jobs: the queue, the supervisor of each machine, and executors (local, Slurm, Ray). Kinds are known by name only."""
