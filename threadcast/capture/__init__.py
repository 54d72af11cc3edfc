"""Turns a program into an operator graph that can be executed."""
