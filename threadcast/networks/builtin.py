"""The built-in networks and their sizes, registered as a third party's are.

Sizes `small`, `medium` and `large` of lstm, phased_lstm, pathnet and googlenet are Graphi's (Tang et al. 2018,
table 1); `paper` is how Liu et al. or TurboDL train a network, as its module says; `tiny` runs a training step in
well under 0.1 s on one core. The others are the field's usual ones, `large` the full ImageNet or published form.
"""

from __future__ import annotations

from typing import Any

from threadcast.networks.registry import register

Sizes = dict[str, dict[str, Any]]

_LENET: Sizes = {
    "tiny": {"batch": 4, "side": 28, "maps": (4, 8), "hidden": 32},
    "small": {"batch": 16, "side": 28},
    "paper": {"batch": 64, "side": 28},
}
_ALEXNET: Sizes = {
    "tiny": {"batch": 4, "side": 67, "width": 1 / 16, "classes": 10},
    "small": {"batch": 8, "side": 131},
    "paper": {"batch": 32, "side": 227},
}
_VGG: Sizes = {
    "tiny": {"batch": 4, "side": 32, "width": 1 / 16, "classes": 10},
    "small": {"batch": 4, "side": 64},
    "paper": {"batch": 32, "side": 224},
}
_GOOGLENET: Sizes = {
    "tiny": {"batch": 4, "side": 64, "width": 1 / 8, "classes": 10, "depth": 1},
    "small": {"batch": 32, "side": 128, "width": 1},
    "medium": {"batch": 32, "side": 192, "width": 2},
    "large": {"batch": 32, "side": 256, "width": 4},
    "paper": {"batch": 32, "side": 224},
}
_INCEPTION_V3: Sizes = {
    "tiny": {"batch": 4, "side": 107, "width": 1 / 16, "classes": 10, "depth": 1},
    "small": {"batch": 4, "side": 139},
    "medium": {"batch": 8, "side": 219},
    "large": {"batch": 32, "side": 299},
    "paper": {"batch": 16, "side": 299},
}
_RESNET: Sizes = {
    "tiny": {
        "batch": 4, "side": 32, "width": 8, "classes": 10, "blocks": (1, 1, 1, 1), "small_images": True,
    },
    "small": {"batch": 8, "side": 64},
    "medium": {"batch": 16, "side": 128},
    "large": {"batch": 32, "side": 224},
    "paper": {"batch": 64, "side": 32, "classes": 10, "small_images": True},
}  # fmt: skip
_DCGAN: Sizes = {
    "tiny": {"batch": 4, "side": 16, "width": 8, "colours": 1},
    "small": {"batch": 16, "side": 28, "width": 32, "colours": 1},
    "medium": {"batch": 64, "side": 64, "width": 64},
    "large": {"batch": 128, "side": 64, "width": 128},
    "paper": {"batch": 64, "side": 28, "width": 64, "colours": 1},
}
_GRAPHI_RECURRENT: Sizes = {
    "small": {"batch": 64, "steps": 20, "width": 128},
    "medium": {"batch": 64, "steps": 30, "width": 512},
    "large": {"batch": 64, "steps": 40, "width": 1024},
}
_LSTM: Sizes = {
    "tiny": {"batch": 4, "steps": 3, "width": 16, "layers": 2},
    **_GRAPHI_RECURRENT,
    "paper": {"batch": 20, "steps": 20, "width": 200, "layers": 2, "vocabulary": 10_000},
}
_PHASED_LSTM: Sizes = {"tiny": {"batch": 4, "steps": 2, "width": 16, "layers": 2}, **_GRAPHI_RECURRENT}
_PATHNET: Sizes = {
    "tiny": {"batch": 4, "side": 16, "width": 4},
    "small": {"batch": 64, "side": 32, "width": 16},
    "medium": {"batch": 64, "side": 48, "width": 32},
    "large": {"batch": 64, "side": 64, "width": 48},
}
_TRANSFORMER: Sizes = {
    "tiny": {"batch": 2, "steps": 8, "width": 16, "heads": 2, "hidden": 32, "layers": 1, "vocabulary": 50},
    "small": {
        "batch": 4, "steps": 64, "width": 128, "heads": 4, "hidden": 512, "layers": 4, "vocabulary": 1_000,
    },
    "medium": {
        "batch": 16, "steps": 128, "width": 512, "heads": 8, "hidden": 2048, "layers": 6, "vocabulary": 37_000,
    },
    "large": {
        "batch": 16, "steps": 128, "width": 1024, "heads": 16, "hidden": 4096, "layers": 6, "vocabulary": 37_000,
    },
}  # fmt: skip
_INCEPTION_BLOCK: Sizes = {
    "tiny": {"batch": 4, "side": 8, "width": 1 / 16},
    "small": {"batch": 1, "side": 14},
    "medium": {"batch": 8, "side": 14},
    "large": {"batch": 8, "side": 28},
}

NETWORKS: tuple[tuple[str, str, Sizes], ...] = (
    ("lenet", "lenet", _LENET),
    ("alexnet", "alexnet", _ALEXNET),
    ("caffenet", "alexnet", _ALEXNET),
    ("vgg16", "vgg", _VGG),
    ("googlenet", "googlenet", _GOOGLENET),
    ("inception_v3", "inception", _INCEPTION_V3),
    ("resnet18", "resnet", _RESNET),
    ("resnet50", "resnet", _RESNET),
    ("dcgan_generator", "dcgan", _DCGAN),
    ("dcgan_discriminator", "dcgan", _DCGAN),
    ("lstm", "lstm", _LSTM),
    ("phased_lstm", "phased_lstm", _PHASED_LSTM),
    ("pathnet", "pathnet", _PATHNET),
    ("transformer", "transformer", _TRANSFORMER),
    ("inception_block", "googlenet", _INCEPTION_BLOCK),
)
"""Name, module and sizes; the builder has the network's name."""


def register_built_in() -> None:
    """Register every network of `NETWORKS`."""
    for name, module, sizes in NETWORKS:
        register(name, f"threadcast.networks.{module}:{name}", sizes)
