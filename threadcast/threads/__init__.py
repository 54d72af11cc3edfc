"""Thread affinity, OpenMP workers and freed memory of this process, and the state that its parts share."""
