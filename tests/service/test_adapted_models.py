"""Adapting models to what is stored of a machine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.models.synthetic_ops import make_ops, measure, measure_all
from tests.waiting import HANGS_S
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


class Counting:
    """A model that counts how often, and to how much, it is adapted, and waits where it is told to."""

    def __init__(self) -> None:
        self.measured, self.begun, self.may_end = [], threading.Event(), threading.Event()
        self.may_end.set()

    def adapts_to(self, machine):
        return True

    def adapted(self, measurements):
        self.measured.append(len(measurements))
        self.begun.set()
        assert self.may_end.wait(HANGS_S)
        return object()


def test_threads_that_ask_at_once_adapt_a_model_once(store):
    model, models, together = Counting(), AdaptedModels(store, store.last_measurement), threading.Barrier(4)
    model.may_end.clear()

    def ask():
        together.wait(HANGS_S)
        return models.of(model, "m@1", NEW)

    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        assert model.begun.wait(HANGS_S)
        model.may_end.set()
        assert len({id(one.result().model) for one in asked}) == 1
    assert len(model.measured) == 1


def test_while_a_model_is_adapted_again_others_get_the_older_one(store):
    model, models = Counting(), AdaptedModels(store, store.last_measurement)
    older = models.of(model, "m@1", NEW)
    store.add([measure(OPS[0], NEW.cases()[0], machine=NEW)])
    model.begun.clear()
    model.may_end.clear()
    with ThreadPoolExecutor() as pool:
        newer = pool.submit(models.of, model, "m@1", NEW)
        assert model.begun.wait(HANGS_S)
        assert models.of(model, "m@1", NEW) is older
        model.may_end.set()
        assert newer.result() is not older
    assert model.measured == [0, 1]
