"""What other libraries are asked about each operator: its answers to numbers at which they may leave PyTorch.

Each question is a small program of an operator, alone or after others that libraries fuse it with. All take the same
rows of numbers, `ROWS`: each row has numbers of one kind, at the beginning, in the middle and at the end, where kernels
run other instructions. How a library's answers differ from PyTorch's is told by kind; nothing is known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Kind = Literal["nan", "inf", "-inf", "digits", "small", "exact"]
"""How answers differ: of NaN, of infinities (-inf: of these alone), in right digits, in those of results near 0 (by
less than `ABSOLUTE`), in the last digit."""
KINDS: tuple[Kind, ...] = get_args(Kind)
_Function = Callable[..., Tensor | Sequence[Tensor]]

RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""Tolerances of answers."""
LEAST, MOST = 1e-37, 1e37
"""Smaller answers may be 0, larger ones infinite: their last digits decide."""
WIDTH = 67
"""Numbers in a row: four of the widest vectors, and three more. All rows have 1,139, which leaves three, too."""
_G = torch.Generator().manual_seed(0)
_ANY = torch.randn(WIDTH, generator=_G)
OTHER = torch.randn(WIDTH, generator=_G)
"""What operators of two arguments get besides."""
MATRIX = torch.randn(WIDTH, 16, generator=_G)


def _repeated(*numbers: float) -> Tensor:
    return torch.tensor(numbers).repeat(WIDTH)[:WIDTH]


def _with(number: float, *places: int, other: float | None = None) -> Tensor:
    row = _ANY.clone()
    row[list(places)] = number
    if other is not None:
        row[places[0]] = other
    return row


_FINITE = (
    _ANY * 2, (_ANY * 5).abs() + 0.1, _repeated(1.3),
    _repeated(0.5, 1.5, 2.5, -0.5, -1.5, 1.0, 1.0, 0.0, 3.0, 3.0, -1.0, 9.9, 0.3),
    _repeated(0.0, -0.0, 0.0, -0.0, -0.0),
    _repeated(1e-7, -1e-7, 1e-5, -1e-8, -10.0, -12.0, -15.0, -17.0, -20.0, -30.0, 1e-20, 8.0, 100.0, 1000.0),
)  # fmt: skip
_LARGE = _repeated(1e30, -1e30, 1e10, -1e10, 100.0, -100.0, 85.0, -85.0, 1e5, -1e5, 2.0**31, -(2.0**33))
_INFINITE = _with(math.inf, 0, 13, 66), _with(math.inf, 7, 13, 66, other=-math.inf)
_LOW = _with(-math.inf, 0, 13, 66), _repeated(-math.inf)
_NAN = *(_with(math.nan, at) for at in (0, 13, 66)), _with(math.nan, 5, 64), _repeated(math.nan)
ROWS = torch.stack([_repeated(math.nan), *_FINITE, _LARGE, *_INFINITE, *_LOW, *_NAN])
_KINDS = ("nan", *["digits"] * len(_FINITE), "large", "inf", "inf", "-inf", "-inf", *["nan"] * 5)
TURNS = 0, 5, 7, 9, 11
"""So far the rows are turned, one time after the other, so that each kind is once at the end of all numbers."""


def _named(names: str, function: Callable[[str], _Function]) -> dict[str, _Function]:
    return {name: function(name) for name in names.split()}


_EACH: Mapping[str, _Function] = {
    **_named(
        "relu hardtanh hardsigmoid hardswish leaky_relu tanh gelu silu elu celu mish softplus neg "
        "abs sqrt rsqrt reciprocal log log2 log10 exp exp2 sin cos tan atan asin acos sinh cosh floor ceil round frac "
        "isnan isinf isfinite logical_not signbit nan_to_num",
        lambda name: getattr(torch.ops.aten, name),
    ),
    **_named("gt ge lt le eq ne clamp_min clamp_max", lambda name: lambda x: getattr(x, name)(0.5)),
    "relu6": F.relu6, "clamp": lambda x: x.clamp(-1, 1), "sigmoid special_expit": torch.sigmoid,
    "log_sigmoid_forward binary_cross_entropy_with_logits soft_margin_loss": F.logsigmoid, "trunc fix": torch.trunc,
    "log1p special_log1p": torch.log1p, "expm1 special_expm1": torch.expm1, "erf special_erf": torch.erf,
    "sign sgn": torch.sign, "bool": Tensor.bool, "pow": lambda x: (x**2, x**3, x**0.5, x**-1, 2**x),
}  # fmt: skip
"""Operators that compute each number by itself."""
_OF_TWO: Mapping[str, _Function] = {
    **_named(
        "gt ge lt le eq ne add sub mul maximum minimum atan2 logaddexp logaddexp2 logical_and logical_or logical_xor "
        "heaviside",
        lambda name: getattr(torch, name),
    ),
    "rsub": lambda x, w: (torch.rsub(x, 1), torch.rsub(x, w)), "div": lambda x, w: (x / w, x / 0.1, x / 11.3),
    "remainder": lambda x, _: torch.remainder(x, 0.1), "fmod": lambda x, _: torch.fmod(x, 0.1),
    "lerp": lambda x, w: torch.lerp(x, w, 0.3), "addcmul": lambda x, w: torch.addcmul(x, w, w),
    "where": lambda x, w: (torch.where(w > 0, x, w), torch.where(w * 2 > 0.3, x * 2, -x)),
    "masked_fill": lambda x, w: x.masked_fill(w > 0, 0.5), "constant_pad_nd": lambda x, _: F.pad(x, (1, 1)),
    "cat": lambda x, w: torch.cat([x, w.expand_as(x)], 1), "_to_copy to copy": lambda x, _: x.double().float(),
    "stack": lambda x, w: torch.stack([x, w.expand_as(x)], 1), "rounding": lambda x, _: x.half().float(),
    "double precision": lambda x, _: (x.double() + 1e-9) - x.double() > 0,
}  # fmt: skip
_OF_ROWS: Mapping[str, _Function] = {
    **_named(
        "sum mean amax amin argmax argmin max min prod cumsum logsumexp logcumsumexp",
        lambda name: lambda x, _: getattr(x, name)(1),
    ),
    "aminmax": lambda x, _: (x.amin(1), x.amax(1)), "softmax _softmax _safe_softmax": lambda x, _: x.softmax(1),
    "_log_softmax log_softmax": lambda x, _: x.log_softmax(1), "any": lambda x, _: x.bool().any(1),
    "all": lambda x, _: x.bool().all(1), "topk": lambda x, _: x.topk(5)[0], "sort": lambda x, _: x.sort(1)[0],
    "topk positions": lambda x, _: x.topk(5)[1], "sort positions": lambda x, _: x.sort(1)[1],
    "argsort positions": lambda x, _: x.argsort(1),
    "linalg_vector_norm norm": lambda x, _: torch.linalg.vector_norm(x, 2, 1),
    "max_pool2d_with_indices max_pool2d": lambda x, _: F.max_pool2d(x[:, None, None], (1, 3), (1, 2)),
    "max_pool1d": lambda x, _: F.max_pool1d(x[:, None], 3, 2), "avg_pool2d": lambda x, _: F.avg_pool1d(x[:, None], 3),
    "max_pool3d_with_indices max_pool3d": lambda x, _: F.max_pool3d(x[:, None, None, None], (1, 1, 3), (1, 1, 2)),
    "_scaled_dot_product_flash_attention_for_cpu": lambda x, _: F.scaled_dot_product_attention(
        *[x[:, :64].reshape(-1, 1, 4, 16)] * 3
    ), "_adaptive_avg_pool2d": lambda x, _: F.adaptive_avg_pool2d(x[:, None, None], 1),
    "mm bmm matmul addmm baddbmm linear": lambda x, _: x @ MATRIX,
    "convolution": lambda x, _: F.conv1d(x[:, None], MATRIX[:9].reshape(16, 1, 9)),
    "native_layer_norm": lambda x, _: F.layer_norm(x, (WIDTH,)),
    "native_group_norm": lambda x, _: F.group_norm(x[:, :66], 3),
    "native_batch_norm _native_batch_norm_legit_no_training": lambda x, w: F.batch_norm(x, w, w.abs() + 0.1),
    "var std var_mean std_mean": lambda x, _: x.var(1), "scatter_reduce mean": lambda x, _: x.scatter_reduce(
        1, torch.zeros(x.shape, dtype=torch.int64), x, "mean", include_self=False
    ),
}  # fmt: skip
"""Operators that compute several numbers together. What they make of numbers that are too large is not asked."""
_TABLES = {"each": _EACH, "two": _OF_TWO, "rows": _OF_ROWS}
FORMS = frozenset(("double precision", "topk positions", "sort positions", "argsort positions", "scatter_reduce mean"))
_WRITTEN = frozenset((
    "relu", "clamp", "clamp_min", "hardsigmoid", "gt", "ge", "sign", "erf", "exp", "log", "maximum", "minimum",
    "rounding",
))  # fmt: skip
_AFTER_DIFFERENCES = frozenset((
    "gt", "ge", "lt", "le", "eq", "ne", "relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "hardsigmoid",
    "sign", "exp", "log", "sqrt", "sigmoid",
))  # fmt: skip
"""Operators that are asked once more behind another, with which they may be fused."""
_AFTER_PRODUCTS = frozenset(("relu", "relu6", "hardtanh", "clamp", "clamp_min", "hardsigmoid", "gelu", "silu"))


class Question(NamedTuple):
    """A question by its table and the names of its operators, with blanks between them."""

    table: str
    names: str

    def answers(self, x: Tensor, w: Tensor) -> list[Tensor]:
        """The answers of whatever runs this; all have the rows of `x`."""
        if self.table == "products":
            return _flat(_EACH[self.names](F.linear(x, MATRIX.T)))
        function = _TABLES[self.table][self.names]
        if self.table == "each":
            twice = self.operators[0] in _AFTER_DIFFERENCES
            return [*_flat(function(x)), *(_flat(function(x - w)) if twice else ())]
        return _flat(function(x, w))

    @property
    def operators(self) -> list[str]:
        """The names of what it is about: of operators, or of a form of several operators."""
        return [self.names] if self.names in FORMS else self.names.split()


QUESTIONS = (
    *(Question(table, names) for table, found in _TABLES.items() for names in found),
    *(Question("products", names) for names in _EACH if names in _AFTER_PRODUCTS),
)
COMPILED = tuple(one for one in QUESTIONS if one.table in ("each", "two") and one.names.split()[0] in _WRITTEN)
"""What a compiler is asked that takes seconds for all of them: where it has code of its own, and not PyTorch's."""
OPERATORS = frozenset(name for one in QUESTIONS for name in one.operators)
"""All that is asked about."""


class Asked(nn.Module):
    """A program of questions: it returns the answers to all of them, one after the other."""

    def __init__(self, questions: Sequence[Question]) -> None:
        super().__init__()
        self._questions = questions

    def forward(self, *given: Tensor) -> list[Tensor]:
        return [answer for one in self._questions for answer in one.answers(*given)]


def _flat(answer: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [answer] if isinstance(answer, Tensor) else list(answer)


def given(turn: int) -> tuple[Tensor, ...]:
    """What the questions are about, turned so far."""
    return ROWS.roll(turn, 0), OTHER


def differences(question: Question, turn: int, found: Iterator[Tensor]) -> set[str]:
    """The kinds of numbers to which a library's next answers are not PyTorch's."""
    kinds = set[str]()
    for wanted in _wanted(question):
        answer = next(found)
        if wanted.shape != answer.shape or wanted.dtype != answer.dtype:
            kinds.update(KINDS)
            continue
        answer = answer.roll(-turn, 0)
        kinds |= _kinds(question.table, wanted, answer)
    return kinds


@cache
def _wanted(question: Question) -> list[Tensor]:
    """PyTorch's answers."""
    return question.answers(*given(0))


def _kinds(table: str, wanted: Tensor, found: Tensor) -> set[str]:
    wanted, found = (one.reshape(len(ROWS), -1).double() for one in (wanted, found))
    error = (wanted - found).abs().nan_to_num(math.inf, math.inf)
    error[(wanted == found) | (wanted.isnan() & found.isnan())] = 0.0
    near = RELATIVE * wanted.abs().nan_to_num(0.0, 0.0, 0.0) + LEAST
    far = error > near + (ABSOLUTE if table == "each" else 10 * ABSOLUTE)
    special = torch.tensor([kind in ("nan", "inf", "-inf") for kind in _KINDS])[:, None]
    far &= special | (wanted.abs() < MOST) | wanted.isnan()
    by_row = {
        "small": (error > near) & (wanted.abs() < MOST) & ~special,
        "exact": (error > 0) & ~special,
    }
    result = {kind for kind, rows in by_row.items() if table != "rows" and bool(rows.any())}
    result |= {kind for kind, row in zip(_KINDS, far.any(1).tolist(), strict=True) if row}
    if "large" in result and table != "rows":
        result.add("digits")
    result.discard("large")
    return result & {"nan"} if table == "products" else result
