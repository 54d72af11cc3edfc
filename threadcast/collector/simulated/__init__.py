"""The papers' Xeon Phi, simulated. Nothing here measures hardware; all measurements say that they are simulated."""
