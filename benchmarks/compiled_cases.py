"""The cases of `benchmarks/compiled.py`: twelve networks, two of them for inference and for training."""

from __future__ import annotations

from dataclasses import replace

from warmup_networks import CASES, Case

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
"""Titles say what is run: "U-Net, training"."""


def case_of(title: str) -> Case:
    """The case with this title."""
    return next(case for case in COMPILED_CASES if case.title == title)
