"""Adapting models to what is stored of a machine."""

from __future__ import annotations

import pytest

from tests.models.synthetic_ops import make_ops, measure, measure_all
from threadcast.core import Machine
from threadcast.models.learned_curve import LearnedCurve
from threadcast.service.adapted_models import AdaptedModels
from threadcast.store import Store

KNOWN, NEW = Machine.uniform("twelve", 12, group_size=12), Machine.uniform("sixteen", 16, group_size=16)
OPS = make_ops(30)


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path / 'adapted.db'}") as opened:
        yield opened


def test_a_model_is_adapted_again_once_the_store_has_grown_by_a_tenth(store):
    model = LearnedCurve(samples=1).fit(measure_all(OPS[:20], machine=KNOWN))
    models, case = AdaptedModels(store, store.last_measurement), NEW.cases()[5]
    assert models.of(model, "m@1", KNOWN) == (model, 0)
    empty = models.of(model, "m@1", NEW)
    assert (empty.model, empty.measured) == (model, 0)
    store.add(measure(op, case, machine=NEW) for op in OPS[20:])
    adapted = models.of(model, "m@1", NEW)
    assert adapted.model is not model
    assert adapted.measured == store.last_measurement() == 10
    assert models.of(model, "m@1", NEW) is adapted
    assert models.of(model, "m@2", NEW).model is not adapted.model
    table = adapted.model.predict_many(OPS[:5], [[]] * 5, NEW.cases(), machine=NEW)
    wide = model.predict_many(OPS[:5], [[]] * 5, NEW.cases(), machine=NEW)
    assert (table.high / table.low < wide.high / wide.low).all()
    store.add([measure(OPS[0], case, machine=NEW)])
    assert models.of(model, "m@1", NEW).measured == 11
    store.add([measure(OPS[1], case, machine=NEW)])
    assert models.of(model, "m@1", NEW).measured == 11  # 12 is less than a tenth more
