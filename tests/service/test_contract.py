"""The running service and its description agree: requests made from it, and against it, over HTTP with a key."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.service.consistent_requests import consistent
from tests.service.service_data import MACHINE
from tests.service.test_server import Running, running
from threadcast.service.keys import add_key
from threadcast.service.settings import ServiceSettings

EXAMPLES = int(os.environ.get("EXAMPLES", "20"))
"""Requests an operation and mode."""

PATIENT_S = 20.0
"""What requests with a deadline of their own are given, where they ask for less: running out of time is no fault."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(60 + 30 * EXAMPLES)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, filled_store: Path, models: Path) -> Iterator[tuple[Running, str]]:
    """A service process that asks for keys, and a key that may do everything."""
    directory = tmp_path_factory.mktemp("contract")
    store = shutil.copy(filled_store, directory / "store.sqlite")
    shutil.copytree(models, directory / "models")
    key = add_key(directory / "keys.json", "everything", ["admin"])
    place = ServiceSettings(store=store, models=directory / "models")
    with running(place, directory, "--keys", str(directory / "keys.json")) as made:
        yield made, key


def operations(server: tuple[Running, str]) -> Iterator[schemathesis.APIOperation]:
    at, key = server
    schema = schemathesis.openapi.from_url(f"{at.url}/openapi.json", headers={"Authorization": f"Bearer {key}"})
    for found in schema.get_all_operations():
        yield found.ok()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["well-formed", "ill-formed"])
def test_whatever_is_sent_the_answer_is_as_described(server: tuple[Running, str], mode: GenerationMode) -> None:
    """All checks of schemathesis, with their default statuses: what fits is accepted, what does not is refused."""
    _, key = server
    tried = 0
    for operation in operations(server):
        takes_something = operation.body or operation.query or operation.path_parameters or operation.headers
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # every text fits a path, and a header

        @settings(
            max_examples=EXAMPLES if takes_something else 1, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        )  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            nonlocal tried
            tried += 1
            if mode is GenerationMode.POSITIVE:
                case.body = consistent(case.path, case.body)
                if case.path == "/v1/curves/{op}":
                    case.query.setdefault("machine", MACHINE.fingerprint)
            if case.method == "POST" and (case.headers or {}).get("If-None-Match") == "*":
                del case.headers["If-None-Match"]  # which every answer has: 412, as described
            if "X-Deadline-S" in (case.headers or {}) and mode is GenerationMode.POSITIVE:
                case.headers["X-Deadline-S"] = str(max(float(case.headers["X-Deadline-S"]), PATIENT_S))
            answer = case.call(headers={"Authorization": f"Bearer {key}"})
            if not (mode is GenerationMode.NEGATIVE and answer.status_code == 413):  # refused for its length already
                case.validate_response(answer, headers={"Authorization": f"Bearer {key}"})

        send()
    assert tried >= EXAMPLES * 5
