"""How exact the running means of normalising layers have to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_MEAN, _VARIANCE = "running_mean", "running_var"


def scales_of_means(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return for each running mean among `values` numbers whose roundings it may have, by the mean's name.

    They are the standard deviations of its channels, the roots of the running variances beside it. Evaluation subtracts
    the mean and divides by the standard deviation, and training finds the mean as a sum of numbers of about this size.
    So its roundings are at least those of the standard deviation: where terms cancel out, all of a mean near zero is a
    rounding. In half precision they are smaller numbers, so that they are roundings of single precision, in which means
    are summed up.
    """
    found = {}
    for name, mean in values.items():
        variance = values.get(name.removesuffix(_MEAN) + _VARIANCE) if name.endswith(_MEAN) else None
        if not isinstance(mean, Tensor) or not isinstance(variance, Tensor) or not mean.is_floating_point():
            continue
        if (mean.shape, mean.dtype) == (variance.shape, variance.dtype):
            single = min(1.0, torch.finfo(torch.float32).eps / torch.finfo(mean.dtype).eps)
            found[name] = variance.detach().float().clamp(min=0.0).sqrt().nan_to_num(nan=0.0, posinf=0.0) * single
    return found
