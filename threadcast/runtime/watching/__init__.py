"""Whether what a captured graph has built in is still as it was: tensors, settings, hooks, Python values."""
