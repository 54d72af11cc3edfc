"""What a recorded call depends on beside its arguments, and whether it still holds."""
