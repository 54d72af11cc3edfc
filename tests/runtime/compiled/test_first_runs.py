"""AOTAutograd examines the operators of a graph's first run also where threadcast runs the graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.compiled.running import run_until_settled

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")

LIBRARY = torch.library.Library("threadcast_first_runs", "FRAGMENT")
LIBRARY.define("itself(Tensor x) -> Tensor")
LIBRARY.impl("itself", lambda x: x, "CPU")
LIBRARY.impl("itself", torch.empty_like, "Meta")
"""An operator that returns its argument and does not say so: compiled, its result does not see later writes to that."""


@pytest.mark.parametrize("raises", [False, True])
def test_a_custom_operator_that_returns_its_input_is_told_as_by_pytorch(raises: bool) -> None:
    weight = nn.Parameter(torch.full((3,), 2.0))

    def function(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.threadcast_first_runs.itself(x + 1) * weight
        return result

    with torch.no_grad(), torch._functorch.config.patch(error_on_custom_op_aliasing=raises):
        compiled = torch.compile(function, backend="threadcast")
        if raises:
            with pytest.raises(RuntimeError, match="may not alias any inputs"):
                compiled(torch.ones(3))
        else:
            with pytest.warns(UserWarning, match="may not alias any inputs"):
                compiled(torch.ones(3))
            run_until_settled(
                lambda number: torch.testing.assert_close(
                    compiled(torch.full((3,), float(number))), torch.full((3,), 2.0 * number + 2.0)
                )
            )
