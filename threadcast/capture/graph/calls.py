"""An operator call compiled to one Python function of the slots, so that no step has to walk through its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._ops import OpOverload

from threadcast.capture.graph.values import AsNumber, Ref, find_refs

Call = Callable[[Sequence[Any]], Any]


def compiled(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a function that calls `target` with the values that `args` and `kwargs` refer to.

    Its parameter is the list of slots (`program`). It takes two thirds of the time of walking through the arguments (a
    `mul` of 64 numbers: 2.1 us, not 3.6 us; a convolution of 16: 10 us, not 17 us). It is compiled from source that
    contains slot numbers and names only; everything else is passed as values.
    """
    names: dict[str, Any] = {"target": target._op if isinstance(target, OpOverload) else target}
    arguments = [_source(arg, names) for arg in args]
    if kwargs:  # a call with ** is slower, even of nothing
        arguments.append(f"**{_source(kwargs, names)}")
    call: Call = eval(f"lambda slots: target({', '.join(arguments)})", names)
    return call


def _source(template: Any, names: dict[str, Any]) -> str:
    if isinstance(template, Ref):
        return f"slots[{template.slot}]" + ("" if template.item is None else f"[{template.item}]")
    if isinstance(template, AsNumber):
        return f"{_source(template.ref, names)}.item()"
    if any(True for _ in find_refs(template)):
        if isinstance(template, dict):
            return "{" + "".join(f"{_source(k, names)}: {_source(v, names)}, " for k, v in template.items()) + "}"
        parts = "".join(_source(part, names) + ", " for part in template)
        return f"[{parts}]" if isinstance(template, list) else f"({parts})"
    name = f"value{len(names)}"
    names[name] = template
    return name
