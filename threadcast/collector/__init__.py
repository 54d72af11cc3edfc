"""Captures graphs, times operations and reads counters."""
