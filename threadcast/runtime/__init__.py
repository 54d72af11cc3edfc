"""Runs plans on real cores: executors, engines, and the guard that keeps PyTorch's default where it is faster."""
