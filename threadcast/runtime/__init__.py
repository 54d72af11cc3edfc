"""Runs plans on real cores: executors, engines, guard."""
