"""What `make bench` prints: stored graphs that are the captured ones, and tables that say that they are simulated."""

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from threadcast.core import Edge, Op, OpGraph, TensorSpec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEC = TensorSpec((4,))


@pytest.fixture(autouse=True)
def benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def graph(kinds: list[str], edges: list[tuple[int, int]]) -> OpGraph:
    ops = tuple(Op(kind, (SPEC,), outputs=(SPEC,)) for kind in kinds)
    return OpGraph(tuple(f"op{i}" for i in range(len(ops))), ops, tuple(Edge(*edge) for edge in edges))


def test_one_graph_after_the_other_keeps_both_and_their_order():
    from paper_networks import one_after_the_other

    first, second = graph(["relu", "add", "mul"], [(0, 1), (0, 2)]), graph(["relu", "add"], [(0, 1)])
    joined = one_after_the_other(first, second)
    assert len(joined) == 5
    assert set(joined.predecessors[3]) == {1, 2}
    assert joined.predecessors[4] == (3,)


def test_the_stored_dcgan_step_is_the_one_that_is_captured():
    pytest.importorskip("torch")
    import paper_networks

    captured = paper_networks.without_views(paper_networks.CAPTURES["dcgan"]())
    stored = paper_networks.load("dcgan")  # before operators that need a shape alone lost their inputs
    now = [("ones", ()) if op.kind == "ones_like" else (op.kind, op.inputs) for op in stored.ops]
    assert Counter(now) == Counter((op.kind, op.inputs) for op in captured.ops)


def test_two_teams_on_half_of_the_cores_beat_one_on_all_as_in_the_paper():
    import paper_studies

    step = paper_studies.network("dcgan")
    assert step.uniform_s(2, 34) < step.uniform_s(1, 34) < step.uniform_s(1, 68)


def test_strategies_leave_the_thread_counts_of_eigens_ops_alone():
    import numpy as np
    import paper_studies

    step = paper_studies.network("dcgan")
    table = step.climbed_curves(paper_studies.PROFILES[0])
    for row, op in enumerate(step.graph.ops):
        offered = int(np.isfinite(table.seconds[row]).sum())
        assert offered == (1 if paper_studies.demand(op).library == "eigen" else 68)


def test_every_table_says_that_it_is_simulated_and_how_far_off_it_is(monkeypatch: pytest.MonkeyPatch):
    import paper_tables

    monkeypatch.setattr(paper_tables, "TABLES", (paper_tables.top_ops,))
    printed = CliRunner().invoke(paper_tables.main, [], catch_exceptions=False).output
    assert "(simulated)" in printed
    assert "on average" in printed
    stored = [row for row in paper_tables.PAPER_TABLES.rows() if row.pop("run") and row["table"] == "table_6"]
    assert list(paper_tables.as_rows([paper_tables.top_ops()])) == stored


def test_the_json_form_gives_every_row_with_its_paper_figure(monkeypatch: pytest.MonkeyPatch):
    import paper_tables

    monkeypatch.setattr(paper_tables, "TABLES", (paper_tables.top_ops,))
    document = json.loads(CliRunner().invoke(paper_tables.main, ["--json"], catch_exceptions=False).output)
    assert document["schema"] == "threadcast.paper-tables/1"
    assert document["simulated"] is True
    table = document["tables"][0]
    rows = {tuple(row["label"]): row["paper"] for row in table["rows"]}
    assert rows["Inception-v3", "Conv2D"] == 326
    off = [abs(row["simulated"] / row["paper"] - 1) for row in table["rows"]]
    assert table["mean_off"] == pytest.approx(sum(off) / len(off))
