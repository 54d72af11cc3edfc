"""Fuses point-wise operators that follow one another into one operator, which goes through memory once."""
