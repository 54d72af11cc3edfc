"""Lower bounds on the makespan of any schedule, and upper bounds on what scheduling can gain."""
