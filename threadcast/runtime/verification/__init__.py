"""Compares a plan's results with those of eager PyTorch on copies of the same state, and finds the wrong operator."""
