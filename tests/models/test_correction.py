"""What threads cut unevenly is corrected, where many ops were learned from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure
from threadcast.core import Machine, Sample
from threadcast.core.errors import ArtefactError
from threadcast.models import correction
from threadcast.models.evaluation import replay
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group

MACHINE = Machine.uniform("sixteen", 16, group_size=16)
CASES = MACHINE.cases()
OPS = make_ops(260, seed=3)


def jagged(ops):
    """Threads take whole tiles of 32 rows, so that all wait for those with one tile more than others."""
    found = []
    for op in ops:
        tiles = math.ceil(op.outputs[0].shape[0] / 32)
        for case in CASES:
            factor = math.ceil(tiles / case.threads) * case.threads / tiles
            made = measure(op, case, machine=MACHINE)
            found.append(replace(made, samples=tuple(Sample(factor * s.seconds) for s in made.samples)))
    return found


@pytest.fixture(scope="module")
def model():
    return LearnedCurve().fit(jagged(OPS[:220]))


def error(model):
    errors = []
    for entry in group(jagged(OPS[220:])):
        observed = replay(model, entry)
        curve = model.predict(entry.op, observed, CASES, machine=MACHINE)
        given = {m.case for m in observed}
        errors += [abs(curve.at(c) / m.seconds - 1) for c, m in entry.by_case.items() if c not in given]
    return float(np.mean(errors))


def uncorrected(model):
    """The same without what was learned of the Gaussian's residuals."""
    copy = LearnedCurve()
    copy.__dict__.update(vars(model))
    copy._machines = {name: replace(learned, correction=None) for name, learned in model._machines.items()}
    return copy


@pytest.mark.system
def test_it_finds_where_thread_counts_divide_badly(model):
    assert error(model) < 0.9 * error(uncorrected(model))


def test_it_is_stored_with_the_model(model):
    files = model.to_files()
    assert "correction.0.trees.json" in files
    assert error(LearnedCurve().from_files(files)) == pytest.approx(error(model), rel=1e-9)
    with pytest.raises(ArtefactError):
        LearnedCurve().from_files({**files, "correction.0.trees.json": files["correction.0.trees.json"][:200]})
    del files["correction.0.trees.json"]
    with pytest.raises(ArtefactError):
        LearnedCurve().from_files(files)


def test_few_ops_are_not_corrected():
    model = LearnedCurve().fit(jagged(OPS[:40]))
    assert "correction.0.trees.json" not in model.to_files()


@pytest.mark.system
def test_of_many_points_it_learns_from_some_ops_of_each_design(model, monkeypatch):
    monkeypatch.setattr(correction, "MOST_POINTS", 6000)
    some = LearnedCurve().fit(jagged(OPS[:220]))
    assert error(some) != error(model)
    assert error(some) < error(uncorrected(some))
