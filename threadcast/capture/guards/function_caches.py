"""Caches of functions' results (`functools.lru_cache`, `functools.cache`), in which capturing leaves no fake tensor."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterable
from functools import _lru_cache_wrapper as FunctionCache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from threadcast.core.errors import CaptureError

MOST = 20_000
"""Most objects that are looked at in a cache; one that leads to more is taken for one that holds a fake tensor."""

_STAND_INS = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_NOT_LOOKED_INTO = (type, ModuleType, FunctionType, CodeType, nn.Module)  # attributes of modules are restored


class CacheFilled(CaptureError):
    """A call fills the cache of a function, so it cannot be captured: later calls that find it full can be."""


class FunctionCaches:
    """The caches of functions that a call can reach, as they are when this is made.

    A function that a cache does not know the result of would compute it with fake tensors while a call is captured, and
    its cache would give them to all later calls. A graph would compute anew what those find in the cache: it may be
    random, or written to.
    """

    def __init__(self, caches: Iterable[FunctionCache[Any]]) -> None:
        self._before = [(cache, _state(cache)) for cache in caches if cache.cache_info().maxsize != 0]
        self._of_code: dict[int, list[tuple[FunctionCache[Any], tuple[int, int]]]] = {}
        """By the id of the code of its function: code itself takes long to hash."""
        self._refused: CacheFilled | None = None
        for cache, state in self._before:
            code = getattr(inspect.unwrap(cache), "__code__", None)
            if code is not None:
                self._of_code.setdefault(id(code), []).append((cache, state))

    def check_running(self) -> None:
        """CacheFilled where a function is running that a cache has called: before its result is kept."""
        frame: FrameType | None = sys._getframe(1) if self._of_code else None
        while frame is not None:
            for cache, state in self._of_code.get(id(frame.f_code), ()):
                if _state(cache) != state:
                    self._refused = _filled(cache)
                    raise self._refused
            frame = frame.f_back

    def clear_filled(self) -> CacheFilled | None:
        """Clear the caches that hold fake tensors since this was made; return what to raise, None where there is none.

        What else they held is computed anew. Few come here, such as those of classes and of what calls no operator.
        What was raised before is returned too, as the call may have caught it.
        """
        filled = [cache for cache, state in self._before if _state(cache) != state and _leads_to_stand_ins(cache)]
        for cache in filled:
            cache.cache_clear()
        return _filled(filled[0]) if filled else self._refused


def _state(cache: FunctionCache[Any]) -> tuple[int, int]:
    """What is another once the cache has called its function: it counts that before it calls."""
    found = cache.cache_info()
    return found.misses, found.currsize


def _filled(cache: FunctionCache[Any]) -> CacheFilled:
    name = getattr(cache, "__qualname__", repr(cache))
    return CacheFilled(f"cannot capture: the cache of {name} is filled in every call, which a graph would not do")


def _leads_to_stand_ins(cache: FunctionCache[Any]) -> bool:
    """Whether a fake tensor or a symbol is among the keys and results of a cache, or may be in them."""
    pending, seen = gc.get_referents(cache), {id(cache)}
    while pending:
        value = pending.pop()
        if isinstance(value, _STAND_INS):
            return True
        if id(value) in seen or isinstance(value, _NOT_LOOKED_INTO):
            continue
        seen.add(id(value))
        if len(seen) > MOST:
            return True
        pending += gc.get_referents(value)
    return False
