"""Searching for short schedules of moldable ops on equal cores, in arrays that compiled loops run over."""
