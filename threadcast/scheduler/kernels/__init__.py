"""A problem as arrays and the compiled loops over them."""
