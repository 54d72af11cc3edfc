"""By how much the cheapest model leads, from scores that are made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from threadcast.cli.model_table import said
from threadcast.models.judgement import Outcome, Row, ranked, row_of
from threadcast.models.lead import Lead, lead_of
from threadcast.models.op_score import OpScore

STEPS = 10


def scored(chosen_s: Sequence[float], measuring_s: float = 0.0, samples: int = 3, all_s: float = 2.0) -> Outcome:
    """Scores of ops whose best case takes one second."""
    points = np.ones((4, 2))
    return Outcome({
        at: OpScore(points, chosen, 1.0, all_s, samples, measuring_s) for at, chosen in enumerate(chosen_s)
    })  # fmt: skip


def lead(**outcomes: Outcome) -> tuple[Lead | None, list[Row]]:
    rows = [row_of(name.rstrip("_"), "s", "all", [outcome], steps=STEPS) for name, outcome in outcomes.items()]
    return lead_of(rows, [[outcome] for outcome in outcomes.values()]), rows


def test_the_best_model_leads_the_next_one_of_another_kind() -> None:
    found, rows = lead(
        far=scored([2.0] * 8), near=scored([1.2] * 8), best=scored([1.0] * 8, 0.5), best_=scored([1.1] * 8)
    )
    assert found is not None
    assert (found.best.model, found.next.model, found.ops, found.is_shown) == ("best", "near", 8, True)
    assert (found.more, found.low, found.high) == pytest.approx((0.15, 0.15, 0.15))
    assert [row.cost for row in ranked(rows)] == pytest.approx([0.05, 0.1, 0.2, 1.0])
    assert said(found) == (
        "best: best with 3 cases measured: 10 runs of each op take 5.0 % longer than at their best thread counts, "
        "measuring included; by near with 3 cases measured 15 points more (95 % interval 15 to 15, 8 ops)"
    )


def test_a_lead_that_some_ops_alone_make_is_told_to_be_none() -> None:
    found, _ = lead(a=scored([1.0, 1.3] * 4, samples=0), b=scored([1.35, 1.0] * 4, samples=1))
    assert found is not None
    assert (found.low < 0 < found.high, found.is_shown) == (True, False)
    assert "a with nothing measured" in said(found)
    assert "; not told apart from b with 1 case measured: 2.5 points more (95 % interval -" in said(found)


def test_where_all_threads_are_best_no_model_leads() -> None:
    found, _ = lead(a=scored([1.0] * 5, all_s=1.0), b=scored([1.1] * 5, all_s=1.0))
    assert said(found) == "best: no model is needed: all threads are best for each of the 5 ops"


def test_one_model_alone_leads_nothing() -> None:
    found, _ = lead(a=scored([1.0] * 3), a_=scored([1.1] * 3))
    assert found is None
    assert "only one model could be judged" in said(found)
