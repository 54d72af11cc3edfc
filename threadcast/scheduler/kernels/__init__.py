"""A problem as arrays, and the compiled loops over them; the Python around the loops is in `search` and `policies`."""
