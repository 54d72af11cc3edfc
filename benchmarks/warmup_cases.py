"""What `benchmarks/warmup.py` and `engine.py` run, by titles that say how: "torchvision/resnet18, training"."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from judged import Named, loss
from warmup_networks import CASES, Case
from zoo_models import ZOO, load_zoo

from threadcast.networks.workload import Workload

MODES = ("inference", "training")
_MORE = (
    Case("Inception block", "inception_block", inference=True, size="small"),
    Case("Inception block", "inception_block", inference=False, size="small"),
    Case("DCGAN discriminator", "dcgan_discriminator", inference=False, size="small"),
    Case("ResNet-18", "resnet18", inference=False, size="small", options={"batch": 4}),
)


def _titled(case: Case) -> Case:
    return replace(case, title=f"{case.title}, {'inference' if case.inference else 'training'}")


COMPILED_CASES: tuple[Case, ...] = tuple(
    sorted(map(_titled, (*CASES, *_MORE)), key=lambda case: (not case.inference, case.title))
)
"""The programs of engine.py: twelve networks, two of them for inference and for training."""
_NETWORKS: tuple[tuple[str, str, str, dict[str, int]], ...] = (
    ("LSTM small", "lstm", "small", {}),
    ("LSTM medium, 10 steps", "lstm", "medium", {"steps": 10}),
    ("PhasedLSTM small", "phased_lstm", "small", {}),
    ("PathNet small, batch 8", "pathnet", "small", {"batch": 8}),
    ("PathNet small, batch 64", "pathnet", "small", {"batch": 64}),
    ("PathNet large, batch 16", "pathnet", "large", {"batch": 16}),
    ("GoogLeNet 128 px, batch 1", "googlenet", "small", {"batch": 1}),
    ("GoogLeNet 128 px, batch 8", "googlenet", "small", {"batch": 8}),
    ("Inception-v3 299 px, batch 1", "inception_v3", "large", {"batch": 1}),
    ("ResNet-50 224 px, batch 1", "resnet50", "large", {"batch": 1}),
    ("ResNet-50 224 px, batch 8", "resnet50", "large", {"batch": 8}),
    ("DCGAN generator, batch 16", "dcgan_generator", "small", {"batch": 16}),
    ("DCGAN discriminator, batch 16", "dcgan_discriminator", "small", {"batch": 16}),
    ("Transformer encoder, batch 4", "transformer", "small", {"batch": 4}),
)
NETWORK_CASES = tuple(
    _titled(Case(title, network, mode == "inference", size, options))
    for mode in reversed(MODES)
    for title, network, size, options in _NETWORKS
)
"""The networks of engine.py, all built in."""
ALONE = ("MobileNet-like, inference", "Text encoder, inference", "U-Net, training", "Recommender, training")
PAIRS = tuple(combinations(ALONE, 2))
"""Functions that run in one process by turns; none of their networks is built in."""
ZOO_TITLES = tuple(f"{name}, {mode}" for name in ZOO for mode in MODES)


def of_images(title: str) -> bool:
    """Whether memory formats may make a difference to a built-in network."""
    return not title.startswith(("LSTM", "PhasedLSTM", "Transformer"))


def load(title: str) -> Workload:
    """Build a case's network with its inputs, the same in every process; without a target for inference."""
    name, _, mode = title.rpartition(", ")
    if name not in ZOO:
        work = next(case for case in (*COMPILED_CASES, *NETWORK_CASES) if case.title == title).load()
        return replace(work, model=work.model.eval(), target=None, loss=None) if mode == "inference" else work
    case = load_zoo(name)
    target = case.target() if mode == "training" else None
    model = (Named(case.model, case.named) if case.named else case.model).train(mode == "training")
    return Workload(name, "own", 1, model, case.inputs, target, None if target is None else loss)
