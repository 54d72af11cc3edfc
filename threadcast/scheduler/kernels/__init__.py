"""A problem as arrays, and compiled loops over them; Python code around the loops is in `search` and `policies`."""
