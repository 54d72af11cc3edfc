"""Registering and loading by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from threadcast import networks
from threadcast.core.errors import InvalidInput, NotFound


def build(batch: int, width: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Linear(width, 2), (torch.randn(batch, width),)


@pytest.fixture
def _own_network() -> Iterator[None]:
    networks.register("own", build, {"tiny": {"batch": 2, "width": 3}, "wide": {"batch": 4, "width": 30}})
    yield
    networks.unregister("own")


@pytest.mark.usefixtures("_own_network")
def test_a_third_partys_network_loads_as_a_built_in_one_does() -> None:
    assert networks.names()[-1] == "own"
    assert networks.sizes("own") == ("tiny", "wide")
    workload = networks.load("own", "wide", batch=5)
    assert (workload.name, workload.size, workload.batch) == ("own", "wide", 5)
    assert workload.inputs[0].shape == (5, 30)
    assert workload.target is None


@pytest.mark.usefixtures("_own_network")
def test_a_name_is_registered_once() -> None:
    with pytest.raises(InvalidInput, match="'own' is registered already"):
        networks.register("own", build, {"tiny": {"batch": 1, "width": 1}})


@pytest.mark.parametrize(
    ("name", "builder", "sizes", "message"),
    [
        ("", build, {"tiny": {}}, "must not be empty"),
        ("a:b", build, {"tiny": {}}, "colon"),
        ("empty", build, {}, "sizes of empty are empty"),
        ("text", "no_function", {"tiny": {}}, "package.module:attribute"),
    ],
)
def test_a_network_that_could_not_be_loaded_is_not_registered(
    name: str, builder: networks.registry.Builder | str, sizes: dict[str, dict[str, int]], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        networks.register(name, builder, sizes)
    assert name not in networks.names()


def test_unknown_name_is_answered_with_the_nearest_and_all_known() -> None:
    with pytest.raises(NotFound, match=r"'resnet19'; did you mean 'resnet18'\? known: lenet, "):
        networks.load("resnet19")
    with pytest.raises(NotFound, match="nonsense"):
        networks.sizes("nonsense")


def test_unknown_size_is_answered_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match=r"lstm has no size 'huge'; known: tiny, small, medium, large, paper"):
        networks.load("lstm", "huge")


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("lstm", {"side": 64}, "lstm has no side; adjustable: batch, steps"),
        ("lenet", {"steps": 4}, "lenet has no steps; adjustable: batch, side"),
        ("lenet", {"batch": 0}, "batch=0 must be a whole number of at least 1"),
        ("lenet", {"batch": True}, "batch=True must be a whole number"),
        ("lenet", {"side": 15}, "side=15 is too small for lenet; give at least 16"),
        ("alexnet", {"side": 66}, "at least 67"),
        ("vgg16", {"side": 31}, "at least 32"),
        ("googlenet", {"side": 8}, "side=8 is too small"),
        ("inception_v3", {"side": 74}, "at least 75"),
        ("resnet50", {"side": 8}, "side=8 is too small"),
        ("pathnet", {"side": 7}, "at least 8"),
        ("dcgan_generator", {"side": 30}, "doubled at least twice"),
        ("dcgan_discriminator", {"side": 8}, "doubled at least twice"),
        ("lenet", {"seed": "x"}, "seed='x' must be an integer"),
    ],
)
def test_an_override_that_does_not_fit_is_an_error_that_says_what_does(
    name: str, override: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        networks.load(name, **override)


@pytest.mark.parametrize(
    ("name", "side"),
    [("lenet", 16), ("alexnet", 67), ("vgg16", 32), ("googlenet", 33), ("inception_v3", 75), ("pathnet", 8)],
)
def test_the_smallest_allowed_side_works(name: str, side: int) -> None:
    workload = networks.load(name, side=side, batch=4)
    assert workload.model(*workload.inputs).isfinite().all()


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, threadcast.networks as n; n.names(); n.sizes('lstm'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
