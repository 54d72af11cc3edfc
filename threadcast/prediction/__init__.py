"""Forecasts in process or over HTTP, behind one interface: caches, deadlines, fallbacks."""
