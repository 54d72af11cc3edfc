"""The steps of `benchmarks/many_cores.py`: six of the papers' networks, and four models of kinds that people bring.

Sizes are such that a step takes one core about a tenth of a second to two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import warmup_networks

from threadcast.networks.registry import load, seeded
from threadcast.networks.workload import Workload, as_workload


@dataclass(frozen=True, slots=True)
class StepCase:
    """A network at a size; `own` where it is a function of `warmup_networks`, and no built-in one."""

    title: str
    network: str
    size: str = "own"
    options: Mapping[str, int] = field(default_factory=dict)

    def load(self) -> Workload:
        """Build the network with its inputs; the same in every process."""
        if self.size != "own":
            return load(self.network, self.size, **self.options)
        with seeded(0):
            built = getattr(warmup_networks, self.network)(**self.options)
            return as_workload(built, source=self.network, name=self.network, size="own")


CASES: tuple[StepCase, ...] = (
    StepCase("Text encoder, batch 8", "encoder", options={"batch": 8, "steps": 128}),
    StepCase("GoogLeNet 128 px, batch 8", "googlenet", "small", {"batch": 8}),
    StepCase("LSTM medium, 10 steps", "lstm", "medium", {"steps": 10}),
    StepCase("MobileNet-like, batch 16", "mobile", options={"batch": 16, "side": 128}),
    StepCase("PathNet large, batch 16", "pathnet", "large", {"batch": 16}),
    StepCase("Recommender, batch 2048", "recommender", options={"batch": 2048}),
    StepCase("ResNet-50 224 px, batch 4", "resnet50", "large", {"batch": 4}),
    StepCase("U-Net 128 px, batch 4", "unet", options={"batch": 4, "side": 128}),
    StepCase("Inception-v3 299 px, batch 1", "inception_v3", "large", {"batch": 1}),
    StepCase("Transformer medium, batch 4", "transformer", "medium", {"batch": 4}),
)
MODES = ("training", "inference")
