"""Which graphs' results AOTAutograd hands on as they are, and what these results are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

_NONE_OF = (
    "num_intermediate_bases", "num_mutated_graph_handled_indices", "num_outputs_aliased", "num_symints_saved_for_bw",
    "num_backward_tokens", "num_graphsafe_rng_states", "tokens", "is_rng_op_functionalized",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw", "num_tensors_saved_with_no_vc_check",
    "num_opaque_objects_saved_for_bw",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlainResults:
    """The results of a forward graph, in order: what is written to the inputs `written`, the program's own results, of
    which `differentiable` says whether they are, and what is saved for the backward pass."""

    written: tuple[int, ...]
    differentiable: tuple[bool, ...]

    @classmethod
    def of(cls, metadata: Any) -> Self | None:
        """Read AOTAutograd's notes on a program; None where it does more with results, or notes are missing."""
        try:
            return cls._read(metadata)
        except AttributeError:  # in another version of PyTorch
            return None

    @classmethod
    def _read(cls, metadata: Any) -> Self | None:
        if any(getattr(metadata, name) for name in _NONE_OF):
            return None
        subclasses = [
            *metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta, *metadata.subclass_tangent_meta,
        ]  # fmt: skip
        if any(not isinstance(one, int) and type(one).__name__ != "PlainTensorMeta" for one in subclasses):
            return None
        written = tuple(metadata.mutated_inp_runtime_indices)
        infos = [metadata.input_info[i] for i in written]
        if any(one.mutates_metadata or one.mutation_inductor_storage_resize or one.requires_grad for one in infos):
            return None
        outputs = metadata.output_info
        if any(not issubclass(one.raw_type, Tensor) or one.dynamic_dims for one in outputs):
            return None
        if any(one.output_type.name not in ("non_alias", "unsafe_view_alias") for one in outputs):
            return None
        if any(one.requires_grad != getattr(one, "requires_grad_for_backward", one.requires_grad) for one in outputs):
            return None
        if metadata.grad_enabled_mutation is not None:
            return None
        return cls(written, tuple(one.requires_grad for one in outputs))
