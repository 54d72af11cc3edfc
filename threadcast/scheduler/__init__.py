"""Decides which cores every operation gets and when, and runs it so."""
