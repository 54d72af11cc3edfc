"""The networks that can be loaded by name.

A network is a builder and a table of sizes. The builder gets a size's options as keyword arguments and
returns `(model, inputs)`, `(model, inputs, target, loss)` or a Workload. Those of the options `batch`, `side`
and `steps` that a size has can be overridden when it is loaded. A third party registers as the built-in
networks do (`builtin.py`):

    register("two_layers", build, {"tiny": {"batch": 4, "width": 8}, "small": {"batch": 64, "width": 512}})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from threadcast.core.arguments import check, check_whole, did_you_mean
from threadcast.core.by_name import ByName, check_importable, imported
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.networks.workload import Workload, as_workload

Builder = Callable[..., Any]
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Network:
    """A registered network: its name, its builder, and the builder's keyword arguments for each size."""

    name: str
    builder: Builder | str
    sizes: Mapping[str, Options]

    def __post_init__(self) -> None:
        if not self.name or ":" in self.name:
            raise InvalidInput(f"name={self.name!r}: a network's name must not be empty or hold a colon")
        if not self.sizes:
            raise InvalidInput(f"sizes of {self.name} are empty; give at least one, as {{'tiny': {{'batch': 4}}}}")
        check_importable("builder", self.builder)


_networks: ByName[Network] = ByName("network")


def register(name: str, builder: Builder | str, sizes: Mapping[str, Options]) -> None:
    """Make `name` loadable.

    A builder given as "package.module:function" is imported when it is first needed, so that registering
    costs nothing. Raises InvalidInput where the name is taken.
    """
    _networks.add(name, Network(name, builder, {size: dict(options) for size, options in sizes.items()}))


def unregister(name: str) -> None:
    """Remove the network `name` from the registry; NotFound where there is none."""
    _networks.remove(name)


def names() -> tuple[str, ...]:
    """Every network that `load` knows, in the order of registration."""
    return tuple(_networks)


def sizes(name: str) -> tuple[str, ...]:
    """The sizes of a network, smallest first for the built-in ones; NotFound for an unknown name."""
    return tuple(_networks.find(name).sizes)


def options(name: str, size: str) -> Options:
    """The keyword arguments of the builder of `name` at `size`, before overrides; NotFound for an unknown one."""
    known = _networks.find(name).sizes
    if size not in known:
        raise NotFound(f"{name} has no size {size!r}; {did_you_mean(size, known)}known: {', '.join(known)}")
    return dict(known[size])


def load(
    name: str,
    size: str = "tiny",
    *,
    batch: int | None = None,
    side: int | None = None,
    steps: int | None = None,
    seed: int = 0,
) -> Workload:
    """Build a registered network with parameters, inputs and target drawn from `seed`.

    `batch`, `side` (image side, pixels) and `steps` (sequence length) replace the size's own where it has
    them. The same arguments give the same tensors, and the caller's random state is left as it was. Under
    `torch.device("meta")` nothing is allocated. Raises NotFound for an unknown name or size, InvalidInput for
    an override that the network does not have or that is too small for it.
    """
    chosen = dict(options(name, size))
    for option, value in (("batch", batch), ("side", side), ("steps", steps)):
        if value is None:
            continue
        if option not in chosen:
            adjustable = [known for known in ("batch", "side", "steps") if known in chosen]
            raise InvalidInput(f"{option}={value}: {name} has no {option}; adjustable: {', '.join(adjustable)}")
        check_whole(option, value)
        chosen[option] = value
    builder = imported(_networks.find(name).builder)
    with seeded(seed):
        built = builder(**chosen)
    return as_workload(built, source=f"the builder of {name}", name=name, size=size, batch=chosen.get("batch"))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw torch's CPU random numbers from `seed` inside the block; restore the caller's state after it."""
    import torch

    check(isinstance(seed, int), "seed", seed, "an integer")
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also reseed accelerators, which the block does not restore.
        torch.default_generator.manual_seed(seed)
        yield
