"""Ops by the names and sizes of the user's own table, in `db ops` and `predict --op`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import invoke
from threadcast.core import Case, Machine, Measurement, Op, OpGraph, Sample, TensorSpec
from threadcast.store import Store

pytestmark = pytest.mark.usefixtures("one_library_thread")
SIZES = [(300, 500), (300, 700), (500, 700), (1000, 700)]
PRODUCT = Op("mm", (TensorSpec((64, 128)), TensorSpec((128, 256))))
TWINS = [Op("relu", (TensorSpec((8, 8)),), {"inplace": inplace}) for inplace in (True, False)]


@pytest.fixture(autouse=True)
def _models_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_MODELS", str(tmp_path / "models"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ops")
    rows = [f"{m};{k};{p};{m * k * 1e-5 / p}" for m, k in SIZES for p in (1, 2, 4)]
    (folder / "sgemm.csv").write_text("\n".join(["M;K;num_threads;time (ms)", *rows]))
    (folder / "layers.csv").write_text("name,threads,ms\nconv1,1,4\nconv1,2,2\nfc,1,9\nfc,2,5\n")
    result = invoke(
        "db", "import", *(str(folder / name) for name in ("sgemm.csv", "layers.csv")), "--store", f"{folder}/s.db"
    )
    assert result.exit_code == 0, result.output
    with Store.open(folder / "s.db") as store:
        both = Machine.uniform("big", 2), Machine.uniform("small", 2)
        store.add(
            Measurement(op, on, Case(1), (Sample(1.0),)) for op in (PRODUCT, *TWINS) for on in both[: len(op.inputs)]
        )
    return folder


def ask(stored: Path, *words: str, code: int = 0) -> Any:
    result = invoke(*words, "--store", str(stored / "s.db"), "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.stderr


@pytest.mark.parametrize(
    ("words", "name", "seconds", "machine"),
    [
        (("sgemm", "M=300", "K=500"), "sgemm M=300 K=500", 0.0015, "sgemm-4c"),
        (("sgemm", "K=500"), "sgemm M=300 K=500", 0.0015, "sgemm-4c"),
        (("sgemm", "M=300", "K=700.0"), "sgemm M=300 K=700", 0.0021, "sgemm-4c"),
        (("conv1",), "conv1", 0.004, "layers-2c"),
        (("mm",), "mm 64x128, 128x256", 1.0, "big-2c"),
    ],
)
def test_an_op_is_forecast_by_its_name_on_the_machine_that_measured_it(
    stored: Path, words: tuple[str, ...], name: str, seconds: float, machine: str
) -> None:
    found = ask(stored, "predict", "--op", *words)
    assert found["machine"].startswith(machine)
    assert (found["ops"][0]["name"], found["source"][0][0]) == (name, "measured")
    assert found["seconds"][0][0] == pytest.approx(seconds, rel=0.02)
    by_key = ask(stored, "predict", found["ops"][0]["key"][:-8])
    assert (by_key["ops"], by_key["machine"]) == (found["ops"], found["machine"])


def test_sizes_that_were_not_measured_are_forecast_by_what_has_learned_from_them(stored: Path, tmp_path: Path) -> None:
    asked = ("predict", "--op", "sgemm", "K=600", "M=400")
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    ask(tmp_path, "train", "--model", "amdahl")
    found = ask(tmp_path, *asked)
    assert found["ops"][0]["name"] == "sgemm M=400 K=600"
    assert [case["threads"] for case in found["cases"]] == [1, 2, 4]
    assert 0.0012 < found["seconds"][0][0] < 0.0048


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--op", "sgem"), "is called 'sgem'; there are sgemm, conv1, "),
        (("--op", "sgemm", "k=3"), "have no 'k': they are described by M, K"),
        (
            ("--op", "sgemm", "M=300"),
            "2 ops are sgemm M=300: say K too, or take one of sgemm M=300 K=500, sgemm M=300 ",
        ),
        (("--op", "sgemm", "M=301"), "0 ops are sgemm M=301: say K too, or take one of sgemm M=300"),
        (("--op", "sgemm", "M=300", "K=500", "M=500"), "M is given twice, as 300 and 500: an op has one M; ask twice"),
        (("--op", "sgemm", "big"), "'big' must be NAME=VALUE, such as m=300"),
        (("--op", "sgemm", "M=300", "K=7,5"), "K=7,5: K must be a number with a decimal point, such as 500"),
        (("--op", "sgemm", "M=1_000", "K=700"), "M must be a number"),
        (("--op", "sgemm", "M=inf", "K=700"), "M must be a number"),
        (("--op", "relu"), "2 ops are relu: say inplace too, or take one of relu 8x8 "),
        (("relu-0123",), "no op relu-0123 in "),
        (("mm-xxx",), "no op of the store has the key 'mm-xxx'"),
    ],
)
def test_what_no_op_is_called_is_refused_with_what_is_near(stored: Path, words: tuple[str, ...], said: str) -> None:
    assert said in ask(stored, "predict", *words, code=1)


def test_predict_needs_one_thing_to_forecast(stored: Path) -> None:
    assert "or an op: --op sgemm m=300" in ask(stored, "predict", code=2)
    assert "name one NETWORK" in ask(stored, "predict", "lstm", "alexnet", code=2)


def test_ops_are_listed_by_name_the_longest_first(stored: Path) -> None:
    found = ask(stored, "db", "ops", "sgemm")["ops"]
    assert [op["name"] for op in found] == [f"sgemm M={m} K={k}" for m, k in reversed(SIZES)]
    assert (found[0]["cases"], found[0]["best"]["threads"], found[0]["best_s"]) == (3, 4, pytest.approx(0.00175))
    twins = {op["name"] for op in ask(stored, "db", "ops", "relu")["ops"]}
    assert twins == {f"relu 8x8 {op.key[-16:-10]}" for op in TWINS}
    shown = invoke("db", "ops", "--limit", "1", "--store", str(stored / "s.db"))
    assert "sgemm M=1000 K=700       3   4 compact" in shown.stdout
    assert "3 more ops on sgemm-4c" in shown.stderr
    assert "no machine has the fingerprint 'x'" in ask(stored, "db", "ops", "--machine", "x", code=1)


def test_ops_of_a_graph_are_shown_by_names_that_do_not_break(stored: Path, tmp_path: Path) -> None:
    long = Op("convolution_backward_weight", (TensorSpec((1, 64, 56, 56)), TensorSpec((64, 64, 3, 3))))
    graph = OpGraph(("a", "b", "c"), (PRODUCT, TWINS[0], long), curves={name: {1: 2.0} for name in "abc"})
    graph.write(tmp_path / "graph.json")
    shown = invoke("predict", str(tmp_path / "graph.json"), "--cores", "1").stdout
    assert " mm 64x128, 128x256 " in shown
    assert " convolution_backward_weight 1x64x56x56, 64x64x3x3 " in shown
    assert PRODUCT.key not in shown
