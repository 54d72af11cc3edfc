"""Which operators may raise an exception because of the values that they are given.

Sizes and types are checked when a call is captured. An index out of range, a singular matrix or a probability above 1
shows only when the operator runs.
"""

from __future__ import annotations

from torch._ops import OpOverload

from threadcast.capture.graph.program import Node

_NAMES = frozenset((
    "_assert_async", "_assert_scalar", "_ctc_loss", "_embedding_bag", "_embedding_bag_forward_only",
    "_functional_assert_async", "_functional_assert_scalar", "_grouped_mm", "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts", "_index_put_impl", "_pack_padded_sequence", "_sample_dirichlet", "_standard_gamma",
    "_unsafe_index", "_unsafe_index_put", "bernoulli", "binary_cross_entropy", "bincount", "binomial", "cholesky",
    "cholesky_inverse", "ctc_loss", "embedding", "embedding_bag", "embedding_renorm",
    "fake_quantize_per_channel_affine", "fake_quantize_per_channel_affine_cachemask", "floor_divide", "fmod", "gather",
    "histc", "histogram", "index", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "index_select",
    "inverse", "lu_unpack", "masked_scatter", "max_unpool2d", "max_unpool3d", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_margin_loss_forward", "multinomial", "nll_loss", "nll_loss2d",
    "nll_loss2d_forward", "nll_loss_forward", "normal", "one_hot", "poisson", "put", "remainder", "repeat_interleave",
    "scatter", "scatter_add", "scatter_reduce", "searchsorted", "segment_reduce", "take",
))  # fmt: skip
_OURS = frozenset(("prims", "threadcast"))
"""Libraries whose operators compute each number by itself and look at no value: loops of fused operators are ours."""
_OURS_BY_INDEX = frozenset(("gather_add",))
"""Those of our operators that look at values all the same: at indices."""
_LINEAR_ALGEBRA = ("linalg_", "_linalg_")
_NEVER_RAISE = frozenset((
    "linalg_vector_norm", "linalg_cross", "linalg_diagonal", "bernoulli.float", "bernoulli.p", "normal.default",
    "normal.float_float",
))  # fmt: skip
"""Names of operators, or of those overloads that take a number where others take a tensor: it is checked at capture."""


def may_raise(node: Node) -> bool:
    """Whether the node's operator may raise because of values: those of PyTorch known for it, and any custom one.

    In a backward pass PyTorch's own operators use the indices that the forward pass has checked; those of a user's
    `autograd.Function` are recorded as of the forward pass.
    """
    if not isinstance(node.target, OpOverload):
        return False
    library, name = node.target._schema.name.split("::")
    if library != "aten":
        return library not in _OURS or (name in _OURS_BY_INDEX and node.phase == "forward")
    name = name if name.startswith("__") else name.rstrip("_")
    if {name, f"{name}.{node.target._overloadname}"} & _NEVER_RAISE:
        return False
    linear_algebra = name.startswith(_LINEAR_ALGEBRA)
    divides_integers = name == "div" and node.kwargs.get("rounding_mode") is not None
    return node.phase == "forward" and (name in _NAMES or linear_algebra or divides_integers)
