"""Finds out whether the tensors that a graph holds still have the values that a backend has copied."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threadcast.capture.graph.captured import Captured
from threadcast.runtime.engine.native.library import loaded_library
from threadcast.runtime.plans.shared_memory import held_by, leave_out


def held_tensors(captured: Captured) -> list[Tensor]:
    """Return the tensors that a captured graph holds."""
    return [value for value in captured.held.values() if isinstance(value, Tensor)]


class WeightVersions:
    """The current versions of tensors, such as all that a captured graph holds, to compare before each call.

    A graph's (`held_tensors`) are the module's parameters and buffers, and whatever other tensors it read: attributes,
    also within lists, dictionaries or tuples, globals, and variables of closures.

    PyTorch's version counters show writes by in-place operators, optimizers, `load_state_dict` and optimised training
    steps. PyTorch does not count writes by way of `.data` or of a NumPy array that shares the memory. To find those,
    `SAMPLES` elements of each tensor are compared: a write that changes all elements of a tensor is always found, one
    that changes few elements may be missed.

    With `weakly` they may be freed meanwhile, which counts as a change.

    RuntimeError for tensors without a version counter, such as those made under `torch.inference_mode`.
    """

    SAMPLES = 2

    def __init__(self, tensors: Iterable[Tensor], *, weakly: bool = False) -> None:
        given = list(tensors)
        self._strongly = [] if weakly else given
        self._weakly = [weakref.ref(tensor) for tensor in given] if weakly else []
        self._versions = [tensor._version for tensor in given]
        self._find_samples()
        self._quick = self._noted()
        self._values = [element.tobytes() for element in self._elements]
        leave_out(self)

    @property
    def views(self) -> list[Tensor]:
        """The tensors that hold the memory of the elements that are compared."""
        return held_by(self._elements)

    @property
    def _tensors(self) -> list[Tensor]:
        """The tensors that have not been freed."""
        if not self._weakly:
            return self._strongly
        return [tensor for reference in self._weakly if (tensor := reference()) is not None]

    def unchanged(self) -> bool:
        """Return whether no write was found since this object was made."""
        if self._quick is not None and self._quick.holds():
            return True
        if list(map(Tensor.data_ptr, self._tensors)) != self._places:  # perhaps only another memory format
            self._find_samples()
        now = self._noted()  # first: what another thread writes meanwhile is then found
        if [tensor._version for tensor in self._tensors] != self._versions:
            return False
        if list(map(np.ndarray.tobytes, self._elements)) != self._values:
            return False
        self._quick = now
        return True

    def _noted(self) -> Any:
        """The present state for a quick look, None where the native library is not loaded."""
        library = loaded_library()
        return None if library is None else library.Unwritten(self._tensors, self._offsets)

    def _find_samples(self) -> None:
        self._places = list(map(Tensor.data_ptr, self._tensors))
        samples = [list(self._samples(tensor)) for tensor in self._tensors]
        self._offsets = [[place for place, _ in found] for found in samples]
        self._elements = [element for found in samples for _, element in found]

    def _samples(self, tensor: Tensor) -> Iterator[tuple[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]]:
        """Of `SAMPLES` elements, spread evenly over the tensor up to its last one, the place in bytes and the bytes."""
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            return
        for i in range(1, min(self.SAMPLES, tensor.numel()) + 1):
            index = np.unravel_index(tensor.numel() * i // min(self.SAMPLES, tensor.numel()) - 1, tensor.shape)
            place = sum(int(i) * step for i, step in zip(index, tensor.stride(), strict=True))
            element = tensor.detach().as_strided((1,), (1,), tensor.storage_offset() + place)
            yield place * tensor.itemsize, element.view(torch.uint8).numpy()
