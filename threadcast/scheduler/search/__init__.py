"""Searches for short schedules, in which each op's thread count is chosen together with order and cores."""
