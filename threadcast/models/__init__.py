"""Performance models, which learn curves; their evaluation and their registry."""
