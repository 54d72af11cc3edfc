"""Whole-model backends for inference: other ways to run a module whose parameters stand still."""
