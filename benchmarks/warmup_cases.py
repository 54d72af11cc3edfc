"""What `benchmarks/warmup.py` and `compiled.py` run, by titles that say how: "torchvision/resnet18, training"."""

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
"""The cases of compiled.py: twelve networks, two of them for inference and for training."""
ALONE = ("MobileNet-like, inference", "Text encoder, inference", "U-Net, training", "Recommender, training")
PAIRS = tuple(combinations(ALONE, 2))
"""Functions that run in one process by turns; none of their networks is built in."""
ZOO_TITLES = tuple(f"{name}, {mode}" for name in ZOO for mode in MODES)


def load(title: str) -> Workload:
    """Build a case's network with its inputs, the same in every process; without a target for inference."""
    name, _, mode = title.rpartition(", ")
    if name not in ZOO:
        work = next(case for case in COMPILED_CASES if case.title == title).load()
        return replace(work, model=work.model.eval(), target=None, loss=None) if mode == "inference" else work
    case = load_zoo(name)
    target = case.target() if mode == "training" else None
    model = (Named(case.model, case.named) if case.named else case.model).train(mode == "training")
    return Workload(name, "own", 1, model, case.inputs, target, None if target is None else loss)
