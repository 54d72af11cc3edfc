"""Predictions, plans and decisions over HTTP."""
