"""Cores that change while a network runs."""
