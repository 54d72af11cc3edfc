"""The native engine: C++ that runs a captured program by a plan with no interpreter in the loop."""
