"""Searches for short schedules of moldable ops, whose thread counts are chosen with their order and their cores."""
