"""Tells of recurrent layers that `torch.compile` leaves to eager PyTorch."""

from __future__ import annotations

from typing import Any

from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters

from threadcast.runtime.calls.shared_learning import told

LEFT = "RNN, GRU, or LSTM"
"""In Dynamo's reasons why it leaves code out."""
_known = 0
"""How often it has done so."""


def tell_of_recurrent_layers() -> None:
    """From now on warn once where Dynamo meets recurrent layers: it leaves out the function that calls them.

    Often no graph is left then, and no backend is asked.
    """
    global _known
    if _tell not in callback_handler.end_callbacks:  # which a reset of Dynamo empties
        _known = _left_out()
        callback_handler.register_end_callback(_tell)


def _left_out() -> int:
    return sum(count for reason, count in counters["unimplemented"].items() if LEFT in reason)


def _tell(_: Any) -> None:
    global _known
    before, _known = _known, _left_out()
    if _known > before:
        told().tell(
            "torch.compile does not trace them; threadcast.optimize(model) and threadcast.optimize_training do",
            what="recurrent layers (RNN, GRU, LSTM) and the code that calls them",
        )
