"""Engines run the steps of a captured program by a plan, on pinned threads: one in C++ and one in Python."""
