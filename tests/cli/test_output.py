from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.cli.output import Output, table
from threadcast.core.figures import duration, significant


@given(st.floats(-1e300, 1e300))
def test_a_rounded_number_is_within_half_a_unit_of_its_last_digit(value):
    shown = float(significant(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=0.005, abs=0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1.00"), (123456.0, "123,000"), (0.00123456, "0.00123"), (-2.5, "-2.50"), (999.9, "1,000"),
        (9.999, "10.00"), (1e-7, "1.00e-07"), (2e20, "2.00e+20"), (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_numbers_keep_three_significant_digits(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (1.5, "1.50 s"), (0.00125, "1.25 ms"), (2e-6, "2.00 us"), (3e-9, "3.00 ns"), (125.0, "125 s"),
     (4e-12, "0.00400 ns"), (-0.5, "-500 ms"), (math.nan, "-")],
)  # fmt: skip
def test_seconds_get_the_unit_that_suits_them(seconds, text):
    assert duration(seconds) == text


def test_json_is_one_document_and_nothing_else(capsys):
    document = {"array": np.array([1.5, np.nan]), "count": np.int64(3), 4: (True, None), "inf": math.inf}
    Output(as_json=True).result(document, "for people")
    found = json.loads(capsys.readouterr().out)
    assert found == {"array": [1.5, None], "count": 3, "4": [True, None], "inf": None}


def test_people_get_tables_within_80_columns_and_without_colour(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [["convolution_backward_weight [3, 3] " * 3, 0.00123456, 12345, 0.98765, None, True]]
    Output().result({}, table(["op", "time_s", "runs", "accuracy", "gap", "converged"], rows, title="Ops"), "[done]")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    for word in ("1.23 ms", "12,345", "0.988", "-", "True", "[3, 3]", "[done]", "time"):
        assert word in text
    assert "time_s" not in text


def test_notes_and_warnings_leave_stdout_alone(capsys):
    output = Output()
    output.note("capturing")
    output.warn("one op did not converge")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "capturing\nthreadcast: warning: one op did not converge\n"
