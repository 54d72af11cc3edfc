"""What libraries answered on other processors, as stand-ins for this one's."""

from __future__ import annotations

from collections.abc import Mapping

from threadcast.runtime.backends.library_facts import Facts
from threadcast.runtime.backends.operator_questions import OPERATORS

_EXTREMES = (
    "amax amin aminmax max min argmax argmin sign max_pool2d_with_indices max_pool3d_with_indices max_pool1d atan2"
)
_LIMITS = "relu relu6 hardtanh clamp clamp_min clamp_max"
_SMALL = "log1p expm1 log_sigmoid_forward binary_cross_entropy_with_logits soft_margin_loss"
_ORDERS = "topk positions,sort positions,argsort positions,scatter_reduce mean"
_FORMS = "atan2 logaddexp logaddexp2 logcumsumexp signbit"
_OPENVINO_NAN = (
    f"{_EXTREMES} {_LIMITS} softmax _softmax log_softmax _log_softmax hardsigmoid exp exp2 expm1 logsumexp maximum "
    "minimum topk sort celu bool all any logical_not logical_and logical_or logical_xor logaddexp"
)


def facts(**kinds: str) -> Facts:
    """Facts of a library that differs in these operators only, whose names have blanks or commas between them."""
    found: dict[str, set[str]] = {name: set() for name in OPERATORS}
    for kind, names in kinds.items():
        for name in names.split(",") if "," in names else names.split():
            assert name in OPERATORS, name
            found[name].add(kind)
    return Facts({name: frozenset(of_one) for name, of_one in found.items()})


def merged(*several: Facts) -> Facts:
    """All that any of them has."""
    return Facts({name: frozenset[str]().union(*(one.found[name] for one in several)) for name in OPERATORS})


AVX2: Mapping[str, Facts] = {
    "onnxruntime": merged(
        facts(nan=_EXTREMES, small=f"{_SMALL} sigmoid", exact="log2 log10", digits=_FORMS), facts(digits=_ORDERS)
    ),
    "openvino": merged(
        facts(nan=_OPENVINO_NAN, small=f"{_SMALL} softplus mish erf", exact="log2 log10 div", digits=_FORMS),
        facts(digits=_ORDERS), facts(small="log1p softplus"), facts(digits="double precision,rounding"),
    ),
    "torch.compile": facts(small="erf", digits="rounding"),
}  # fmt: skip
"""On a processor without AVX-512 (OpenVINO 2026.4, ONNX Runtime 1.32, PyTorch 2.13)."""
AVX512 = {**AVX2, "openvino": merged(AVX2["openvino"], facts(nan="gt ge"))}
"""On one with AVX-512, bfloat16 and AMX: OpenVINO's `>` and `>=` say True of NaN."""
FUSED = frozenset(_LIMITS.split())
"""What Inductor with freezing has oneDNN compute with the products before."""
