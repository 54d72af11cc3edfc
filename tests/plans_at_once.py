"""Plans that are made at once and win, for processes of their own: as the fixtures of `runtime` do it in tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tests.runtime.conftest import Decided, SequentialPlanner
from tests.whole_calls import by_the_graphs
from threadcast.runtime.compiled.whole_calls import WholeCalls
from threadcast.runtime.tuner import candidates, looks, plan_candidate, planning, standings


@contextmanager
def plans_at_once() -> Iterator[None]:
    """Within the context nothing depends on how fast anything is: plans run what they can, and graphs all calls."""
    with ExitStack() as end:
        for owner, name, value in (
            (standings, "are_steady", lambda _: True),
            (planning, "ForecastingPlanner", SequentialPlanner),
            (looks, "HOPELESS", math.inf),
            (plan_candidate, "SLOWER", math.inf),
            (standings, "WORTH", 0.0),
            (candidates, "Tournament", Decided),
            (WholeCalls, "next_turn", by_the_graphs),
        ):
            end.enter_context(patch.object(owner, name, value))
        yield
