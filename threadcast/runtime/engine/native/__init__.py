"""The native engine: C++ that runs a captured program by a plan without Python between operators."""
