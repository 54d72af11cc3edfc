"""Cores that come and go while a process runs: given by hand, by its container's limits, or by an arbiter.

- `attach`: a plain process lets its threads follow the cores that it is given.
- `division`, `placement`, `ledger`: which process gets which cores; pure.
- `arbiter`: the daemon that decides for all processes of a machine; `member` is a process's side of it.
"""
