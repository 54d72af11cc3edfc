"""A snapshot of a module's attributes, so that capturing leaves none of its fake tensors behind in them."""

from __future__ import annotations

from typing import Any

from torch import nn

from threadcast.capture.guards.python_state import same
from threadcast.capture.guards.reachable import FOLLOWS_PARAMETERS

Contents = tuple[Any, ...] | dict[Any, Any]


class ModuleState:
    """A snapshot of the attributes of a module and its submodules, to restore them later.

    It includes the contents of attributes that are lists, sets or dictionaries, and the parameters' gradients.
    """

    def __init__(self, module: nn.Module) -> None:
        self._owners = {id(vars(part)): isinstance(part, nn.RNNBase) for part in module.modules()}
        self._held: list[tuple[Any, str, Contents]] = []
        for part in module.modules():
            self._keep(vars(part), type(part).__name__)
            for name, value in vars(part).items():
                if isinstance(value, list | dict | set):
                    own = isinstance(part, nn.RNNBase) and name in FOLLOWS_PARAMETERS
                    self._keep(value, "" if own else f"{type(part).__name__}.{name}")
        self._gradients = [(parameter, parameter.grad) for parameter in module.parameters()]

    def restore(self) -> str | None:
        """Restore everything; return the name of the first thing that had changed, None where nothing had."""
        changed = None
        for container, name, contents in self._held:
            if _same(container, contents):
                continue
            changed = changed or self._described(container, name, contents)
            container.clear()
            if isinstance(container, list):
                container.extend(contents)
            else:
                container.update(contents)
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                changed = changed or "a parameter's gradient"
                parameter.grad = gradient
        return changed

    def _keep(self, container: Any, name: str) -> None:
        self._held.append((container, name, dict(container) if isinstance(container, dict) else tuple(container)))

    def _described(self, container: Any, name: str, contents: Contents) -> str | None:
        """Which item of a container has changed, as text; None where PyTorch itself has set all that have."""
        if id(container) not in self._owners or not isinstance(contents, dict):
            return name or None
        own = FOLLOWS_PARAMETERS if self._owners[id(container)] else ()
        changed = (key for key in {**contents, **container} if not same(container.get(key), contents.get(key)))
        attribute = next((key for key in changed if key not in own), None)
        return None if attribute is None else f"{name}.{attribute}"


def _same(container: Any, contents: Contents) -> bool:
    if len(container) != len(contents):
        return False
    if isinstance(contents, dict):
        return all(key in container and same(container[key], value) for key, value in contents.items())
    if isinstance(container, set):
        return all(value in container for value in contents)
    return all(map(same, container, contents))
