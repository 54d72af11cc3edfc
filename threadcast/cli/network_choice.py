"""The argument and the options of a command that select a network."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from threadcast.capture.workloads import Mode, OptimizerName
    from threadcast.networks import Workload

_OPTIONS = (
    click.option("--size", help="Size of a built-in network [default: tiny]."),
    click.option("--batch", type=click.IntRange(1), help="Batch size [default: the size's own]."),
    click.option(
        "--mode",
        type=click.Choice(["forward", "training"]),
        help="Forward pass or training step [default: training where there is a loss].",
    ),
    click.option(
        "--optimizer", type=click.Choice(["sgd", "adam"]), default="sgd", show_default=True, help="Of a training step."
    ),
)


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """A network as the command line names it (`spec`), and its options; None where an option is not given."""

    spec: str
    size: str | None
    batch: int | None
    mode: Mode | None
    optimizer: OptimizerName

    def load(self) -> Workload:
        """Create the network, a built-in one or that of FILE.py:function. Needs torch; raises as `load_spec`."""
        from threadcast.networks import load_spec

        return load_spec(self.spec, size=self.size, batch=self.batch)

    @property
    def profiling(self) -> str:
        """The command line that measures the network's ops."""
        options = {"size": self.size, "batch": self.batch, "mode": self.mode}
        given = [f"--{name} {value}" for name, value in options.items() if value is not None]
        adam = ["--optimizer adam"] if self.optimizer == "adam" else []
        return " ".join(["threadcast profile", self.spec, *given, *adam])


def network_options(
    *, metavar: str = "NETWORK", several: bool = False, required: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the argument NETWORK and the options that select its size, batch size, mode and optimizer.

    The command gets them as one argument, `network`, a `NetworkChoice`. With `several` it takes one or more networks
    (none too where they are not `required`), to all of which the options apply, and gets `networks`, a list.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_network(
            *args: Any, network: str | tuple[str, ...], size: str | None, batch: int | None, mode: Mode | None,
            optimizer: OptimizerName, **kwargs: Any,
        ) -> Any:  # fmt: skip
            if isinstance(network, str):
                return function(*args, network=NetworkChoice(network, size, batch, mode, optimizer), **kwargs)
            chosen = [NetworkChoice(one, size, batch, mode, optimizer) for one in network]
            return function(*args, networks=chosen, **kwargs)

        command: Callable[..., Any] = with_network
        argument = click.argument("network", metavar=metavar, nargs=-1 if several else 1, required=required)
        for option in reversed((argument, *_OPTIONS)):
            command = option(command)
        return command

    return decorate
