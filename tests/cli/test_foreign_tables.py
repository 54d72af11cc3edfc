"""Tables of other programs on their way through `db import`, `train`, `predict`, `plan`, `compare` and the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.commands import invoke
from threadcast.core import Machine, Op, OpGraph, TensorSpec
from threadcast.models.nominal_roofline import CALL_S
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings

pytestmark = pytest.mark.usefixtures("one_library_thread")
SIDES = [2**i for i in range(6, 11)]
COUNTS = (1, 2, 4, 8)


def seconds(m: int, k: int, n: int, threads: int) -> float:
    return 2e-10 * m * k * n / threads + 2e-6 * threads + 1e-5


def product(kind: str = "mm", **sides: Any) -> Op:
    return Op(kind, attributes=sides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of products, a store of it, and a champion that learned from it."""
    folder, random = tmp_path_factory.mktemp("tables"), np.random.default_rng(3)
    lines = ["m,k,n,threads,seconds"]
    for _ in range(25):
        m, k, n = random.choice(SIDES, 3).tolist()
        lines += [f"{m},{k},{n},{p},{seconds(m, k, n, p):.6g}" for p in COUNTS]
    (folder / "mm.csv").write_text("\n".join(lines))
    for words in (["db", "import", str(folder / "mm.csv")], ["train", "--model", "static_xgboost", "--jobs", "1"]):
        place = ["--models", str(folder / "models")] if words[0] == "train" else []
        result = invoke(*words, "--store", str(folder / "store.sqlite"), *place)
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`trained`, as the place of the store and the models."""
    monkeypatch.setenv("THREADCAST_STORE", str(trained / "store.sqlite"))
    monkeypatch.setenv("THREADCAST_MODELS", str(trained / "models"))
    monkeypatch.chdir(trained)
    return trained


@pytest.fixture
def client(trained: Path) -> Iterator[Any]:
    app = create_app(ServiceSettings(store=trained / "store.sqlite", models=trained / "models"))
    yield app.test_client()
    app.extensions["threadcast"].store.close()


def machine() -> str:
    said = json.loads(invoke("db", "info", "--json").stdout)
    (found,) = said["machines"]
    return str(found["fingerprint"])


def asked(*ops: Op, words: tuple[str, ...] = ("predict",)) -> Any:
    OpGraph(tuple(f"op{i}" for i in range(len(ops))), ops).write(Path("graph.json"))
    return invoke(*words, "graph.json", "--machine", machine(), "--json")


OTHERS = [
    product("matmul", m=300, k=500, n=700),
    Op("relu", (TensorSpec((64, 64)),)),
    product(m=300, k=500, n=700_000),
]


def test_ops_unlike_all_that_was_learned_are_said_to_be_extrapolated_and_take_as_long_as_a_call(
    folder: Path, client: Any
) -> None:
    result = asked(product(m=300, k=500, n=700), *OTHERS)
    said = json.loads(result.stdout)
    assert "nothing was measured on this machine of 3 of 4 different ops" in result.stderr
    assert said["model"].startswith("static_xgboost@1, joint_process (shipped prior and store) for")
    answer = client.post("/v1/predictions", json={"ops": [op.to_json() for op in OTHERS], "machine": machine()})
    for answered in ({name: said[name][1:] for name in ("source", "seconds")}, answer.get_json()):
        assert [set(row) for row in answered["source"]] == [{"extrapolated"}] * 3
        assert np.min(answered["seconds"]) >= CALL_S
    planned = json.loads(asked(*OTHERS, words=("plan",)).stdout)
    assert planned["makespan_s"] >= CALL_S
    graph = {**OpGraph(("a", "b", "c"), tuple(OTHERS)).to_json()}
    over_http = client.post("/v1/plans", json={"graph": graph, "machine": machine()}).get_json()
    assert {op["source"] for op in over_http["ops"]} == {"extrapolated"}


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (product(M=300, K=500, N=700), "lacks 'k' (it has 'K'), 'm' (it has 'M'), 'n' (it has 'N')"),
        (product(m=300, k=500), "lacks 'n'"),
        (product(m="300", k=500, n=700), "m='300' must be a number above 0"),
    ],
)
def test_features_that_are_missing_or_misspelt_are_refused_by_name(
    folder: Path, client: Any, op: Op, said: str
) -> None:
    for words in (("predict",), ("plan",)):
        result = asked(product(m=300, k=500, n=700), op, words=words)
        assert (result.exit_code, said in result.stderr, "profile" in result.stderr) == (1, True, False), result.output
    answer = client.post("/v1/predictions", json={"ops": [op.to_json()], "machine": machine()})
    assert (answer.status_code, said in answer.get_json()["detail"]) == (422, True)


def test_comparing_says_which_columns_describe_nothing_and_how_far_regret_spreads(folder: Path) -> None:
    rows = (folder / "mm.csv").read_text().splitlines()
    Path("again.csv").write_text("\n".join([f"{rows[0]},pass", *(f"{row},{i}" for i in (1, 2) for row in rows[1:])]))
    words = ("compare", "again.csv", "--model", "static_xgboost", "--samples", "0", "--jobs", "1")
    found = invoke(*words, "--json")
    assert "the column 'pass' numbers repetitions, and does not describe ops" in found.stderr
    (row,) = json.loads(found.stdout)["rows"]
    assert row["ops"] <= 25
    assert row["regret_spread"] >= 0
    assert "\u00b1" in invoke(*words).stdout


def test_predict_shows_the_counts_that_a_graph_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    OpGraph(("a",), (Op("mm"),), curves={"a": {1: 8.0, 3: 3.0, 6: 1.0}}).write(Path("graph.json"))
    Path("machine.json").write_text(json.dumps(Machine.uniform("two", 8, group_size=4).to_json()))
    said = json.loads(invoke("predict", "graph.json", "--machine", "machine.json", "--json").stdout)
    assert [case["threads"] for case in said["cases"]] == [1, 2, 3, 4, 6]
    assert said["ops"][0]["best"]["threads"] == 6
