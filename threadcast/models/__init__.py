"""Learns curves: one file a model, their evaluation and their registry."""
