"""Affinity, OpenMP and memory: what this process may use and how."""
