"""Point-wise operators that follow one another, made into one that goes through memory once."""
