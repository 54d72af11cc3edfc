"""Results of calls in channels last lie in memory as those of the given format do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from threadcast.core.errors import ExecutionError
from threadcast.runtime.calls.result_layout import ResultLayout
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat


def of_several(y: Tensor) -> dict[str, Any]:
    return {"y": y, "n": 3, "others": [y.transpose(1, 3), y[1:], y]}


@pytest.mark.parametrize("results", [of_several, lambda y: y, lambda y: (y, y.flatten(1))])
def test_results_have_the_strides_and_share_the_memory_that_they_do_in_the_given_format(results: Any) -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8)
    model_format = ModelFormat(model)
    layout = ResultLayout(model_format)

    @torch.no_grad()
    def run(x: Tensor) -> Any:
        return results(model(model_format.arguments(x)))

    call = layout.eager(run)
    model_format.set(MemoryFormat.CHANNELS_LAST)
    with pytest.raises(ExecutionError, match="it is not known how the results"):
        call(x)
    model_format.set(MemoryFormat.AS_GIVEN)
    wanted = call(x)
    model_format.set(MemoryFormat.CHANNELS_LAST)
    assert not run(x)["y"].is_contiguous() if results is of_several else True
    found = call(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_stride=True)
    leaves = torch.utils._pytree.tree_leaves
    for one, other in zip(leaves(found), leaves(wanted), strict=True):
        same = [value is one for value in leaves(found)]
        assert same == [value is other for value in leaves(wanted)]
    if results is of_several:
        found["y"].zero_()
        assert not any(part.any() for part in found["others"])
