"""Makes the prior of what backends gain that threadcast ships, from the recorded figures of public models.

    python benchmarks/backend_prior.py

It reads `data/studies/public_models.csv`, and writes `threadcast/runtime/plans/backend_prior.json`, a row a model. What
was kept is in the figures, and `torch.compile`; of other backends it is only known that they were not kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threadcast.runtime.plans.backend_history import PRIOR, SCHEMA, NetworkKind

FIGURES = Path(__file__).parents[1] / "data" / "studies" / "public_models.csv"

KINDS: Mapping[NetworkKind, str] = {
    "pointwise": r"geometric",
    "products": r"^transformers/|deit|resmlp|xcit|levit|conformer|convnext|swin|gmixer|crossvit|/vit_|mambaout"
    r"|coat_|Segmenter|transformers-auto-model(?!.*(Visual-Attention|OttoYu|depth-anything|glpn))",
}
"""What most of the arithmetic of models is whose names match; of all others it is convolutions."""

BACKENDS = ("openvino", "onnxruntime", "torch.compile")

COSTS_S = {"program": 4.0, "openvino": 1.5, "onnxruntime": 1.5, "torch.compile": 20.0}
"""CPU seconds of reading, exporting and writing a program, and of building, checking and timing a backend: medians of
ResNet-18, GoogLeNet and a transformer, `small`, on an AMD EPYC with AVX-512."""


NOT_KEPT = 1.15
"""Seconds over the kept one's that a backend is taken to need that was not kept and whose seconds nobody recorded: it
was slower, and most that are built come within 1.3."""


def shares(row: Mapping[str, str]) -> dict[str, float]:
    """The seconds of each backend over PyTorch's, as far as they are known; where a plan was kept, of Inductor only."""
    kept, kept_share = row["runs"].split(",")[0], 1 / float(row["threadcast"])
    found = {}
    if kept in BACKENDS:
        found = {name: kept_share if name == kept else NOT_KEPT * kept_share for name in BACKENDS}
    compiled = [float(row[column]) for column in ("inductor", "frozen") if row[column]]
    if kept != "torch.compile" and compiled:
        found["torch.compile"] = 1 / max(compiled)
    return {name: float(f"{share:.3g}") for name, share in found.items()}


def kind_of(row: Mapping[str, str]) -> NetworkKind:
    """The kind of a model, by its name."""
    name = f"{row['model']} {row['library']}"
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "convolutions")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with FIGURES.open() as file:
        models = [row for row in csv.DictReader(file) if row["mode"] == "inference"]
    rows: list[dict[str, Any]] = [{"kind": kind_of(row), "shares": found} for row in models if (found := shares(row))]
    rows[0]["cost_s"] = COSTS_S
    lines = ",\n".join(json.dumps(row) for row in rows)
    PRIOR.write_text(f'{{"schema": "{SCHEMA}", "found": [\n{lines}\n]}}\n')
    print(Counter(row["kind"] for row in rows))


if __name__ == "__main__":
    main()
