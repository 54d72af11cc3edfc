"""The sets that ship: readable, of every network's operations at every thread count, and found by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from threadcast.core.errors import NotFound
from threadcast.store.recorded import recorded


def test_every_set_has_every_operation_at_every_thread_count() -> None:
    measurements = recorded("amd-epyc-2c")
    by_op: dict[str, set[int]] = {}
    for one in measurements:
        by_op.setdefault(one.op.key, set()).add(one.case.threads)
        assert one.seconds > 0
        assert len(one.machine) == 2
    assert set(map(frozenset, by_op.values())) == {frozenset({1, 2})}
    kinds = {one.op.kind for one in measurements}
    assert {"convolution", "addmm", "sgd_update", "batch_norm"} <= kinds
    assert len(recorded()) >= len(measurements)


def test_a_set_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="amd-epyc-2c"):
        recorded("cray-1")
    with pytest.raises(NotFound, match="none"):
        recorded("cray-1", folder=tmp_path)
