"""Writes every section of docs/figures anew from the tables of data/studies: `python benchmarks/figures`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures.every import STUDIES

if __name__ == "__main__":
    for study in STUDIES:
        study.write()
