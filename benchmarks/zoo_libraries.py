"""Imports the libraries of `make bench-zoo` beside a PyTorch for CPUs.

Torchvision's and torchaudio's packages on PyPI have extensions for CUDA, which do not load beside it. Torchaudio's are
deleted by the make target; the models need none. Torchvision names two operators of its extension when it is imported,
so they are declared here.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch

_VISION = torch.library.Library("torchvision", "FRAGMENT")


def library(name: str) -> Any:
    """Import a module of one of the libraries. Nothing is downloaded."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for operator in ("nms", "qnms"):  # timm and transformers import torchvision, too
        if not hasattr(torch.ops.torchvision, operator):
            _VISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_module(name)
