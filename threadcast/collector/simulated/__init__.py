"""A simulation of the Xeon Phi that the papers use. It measures no hardware; all measurements say "simulated"."""
