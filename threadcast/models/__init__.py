"""Performance models, which learn curves, with one file for each model; their evaluation and their registry."""
