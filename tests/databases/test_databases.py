"""A part of PyTorch's databases, some of every entry, by random plans: right, or refused, never different.

`python -m tests.databases` runs all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases.cases import DATABASES, Case, spread
from tests.databases.judge import Judge
from tests.runtime.random_engines import random_engines

GROUPS = 8
"""Tests of each database, so that several workers can share them."""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with random_engines(2) as engines:
        yield Judge(engines)


@pytest.mark.system
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("database", DATABASES)
def test_plans_give_what_eager_gives(database: str, group: int, judge: Judge) -> None:
    found = (judge(case) for case in list(spread(database))[group::GROUPS])
    outcomes = [outcome for outcome in found if outcome is not None]
    different = [f"{outcome.name}: {outcome.reason}" for outcome in outcomes if outcome.status == "different"]
    assert not different, "\n".join(different)
    right = sum(outcome.status == "right" for outcome in outcomes)
    assert right >= (1 if database == "optim_db" else len(outcomes) / 2), (
        "of operators and modules most are not refused"
    )


def test_every_entry_is_in_the_part_that_is_always_run() -> None:
    names = {case.name.split()[0] for database in DATABASES for case in spread(database)}
    assert {"SGD", "AdamW", "nn.Conv2d", "nn.BatchNorm2d", "nn.functional.conv2d", "add", "mm"} <= names
    assert len(names) > 700


def test_a_case_is_the_same_whenever_it_is_made() -> None:
    case: Case = next(spread("op_db"))
    assert case.seed == next(spread("op_db")).seed
