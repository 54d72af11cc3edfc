"""What a policy or a plan would do: simulated time, cores taken, schedules checked."""
