"""Times operations alone and beside each other, reads counters, and runs campaigns that measure a whole network."""
