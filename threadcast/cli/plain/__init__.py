"""Times networks in plain PyTorch, at several settings."""
