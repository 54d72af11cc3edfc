"""Bundles: one file with what this machine has learned and compiled, for others of its kind."""
