"""Where the service does not answer somebody does, and is named."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, SerialShare, local
from threadcast.core import Case, Curve, Machine, Measurement, Op, Sample, Source
from threadcast.core.errors import FeatureError, ModelError, ServiceError
from threadcast.prediction.fallback import first_curves, roofline
from threadcast.prediction.predictor import LocalPredictor
from threadcast.prediction.remote import RemotePredictor

NOBODY = "http://127.0.0.1:9"


class Ignorant(SerialShare):
    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        raise ModelError("nothing was measured")


def ignorant() -> LocalPredictor:
    return LocalPredictor(Ignorant(), MACHINE, {}, version="ignorant@1")


def test_the_first_who_can_tell_answers_and_is_named() -> None:
    found = first_curves([ignorant(), local(0.3, version="spare@7"), roofline(MACHINE)], OPS, until_s=math.inf)
    assert found.model == "spare@7"


def test_where_nobody_can_tell_the_first_says_why() -> None:
    with pytest.raises(ModelError, match="nothing was measured"):
        first_curves([ignorant(), ignorant()], OPS, until_s=math.inf)


def test_nothing_is_guessed_of_an_op_that_lacks_what_describes_its_kind() -> None:
    class Strict(SerialShare):
        def knows(self, op: Op) -> Source | None:
            raise FeatureError("lacks 'm'")

    strict = LocalPredictor(Strict(), MACHINE, {})
    with pytest.raises(FeatureError, match="lacks 'm'"):
        first_curves([strict, roofline(MACHINE)], OPS, until_s=math.inf)
    with pytest.raises(ServiceError, match="nor can the local model answer: lacks 'm'"):
        RemotePredictor(NOBODY, MACHINE, deadline_s=PATIENT_S, fallback=strict).curves(OPS)


def test_a_roofline_can_tell_of_any_op_on_any_machine() -> None:
    for machine in (MACHINE, Machine.uniform("one", 1), Machine.uniform("many", 272, group_size=2)):
        table = roofline(machine).curves([*OPS, Op("nothing", cost=(0, 0)), Op("much", cost=(1e15, 1e15))])
        assert table.cases == machine.cases()
        assert np.all(np.isfinite(table.seconds))
        assert np.all((table.low > 0) & (table.low < table.seconds) & (table.seconds < table.high))
        assert {Source.EXTRAPOLATED} == {source for i in range(len(table)) for source in table[i].source}


def test_a_roofline_gives_what_was_measured_as_it_was() -> None:
    measured = Measurement(OPS[0], MACHINE, Case(2), (Sample(0.5),))
    curve = roofline(MACHINE, {OPS[0].key: [measured]}).curves(OPS)[0]
    assert curve.at(Case(2)) == 0.5
    assert curve.source[1] is Source.MEASURED


def test_the_client_with_its_last_resort_needs_only_the_base_install() -> None:
    program = (
        "import sys\n"
        "from threadcast.core import Machine, Op\n"
        "from threadcast.prediction.remote import RemotePredictor\n"
        f"RemotePredictor({NOBODY!r}, Machine.uniform('two', 2)).curves([Op('mm')])\n"
        "print(sys.modules.keys() & {'torch', 'sklearn', 'scipy', 'sqlalchemy', 'pandas'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
