"""Finds the fastest way to run a call: a pure state machine decides, `Tuning` carries out its decisions."""
