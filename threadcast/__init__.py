"""Forecast how long every operation takes at every thread count, and schedule by the forecast."""

__version__ = "0.1.0"
