"""Gains are told with how to get them, and noise as no gain."""

from __future__ import annotations

from threadcast.cli.findings import State
from threadcast.cli.output import Output
from threadcast.cli.plain.gains import PlainGains, Setting, Spread, TimedSetting
from threadcast.cli.plain_gains import times, to_findings, to_json
from threadcast.core.gains import Gain

MEDIAN = Spread(0.05, 0.04, 0.06)


def timed(name: str, gain: Gain, *, gains: bool = False) -> TimedSetting:
    advice = None if name == "as run now" else f"how to get {name}"
    return TimedSetting(Setting(name, advice), MEDIAN, gain, 12.4, 1 << 20, gains)


GAINS = PlainGains(
    "lenet", "small", 4, "forward", 2, 10,
    (
        timed("as run now", Gain(1, 1, 1, 10)),
        timed("memory kept", Gain(1.5, 1.4, 1.6, 10), gains=True),
        timed("channels last", Gain(1.01, 0.9, 1.1, 10)),
        timed("1 thread", Gain(0.6, 0.5, 0.7, 10)),
    ),
    {"both": "RuntimeError: no"},
)  # fmt: skip


def test_what_gains_is_a_note_with_advice_and_what_does_not_is_well():
    assert [(f.topic, f.state, f.found, f.advice) for f in to_findings(GAINS)] == [
        ("gain of memory kept", State.NOTE, "1.50 (1.40 to 1.60)", "how to get memory kept"),
        ("gain of channels last", State.OK, "none beyond noise: 1.01 (0.90 to 1.10)", None),
        ("gain of 1 thread", State.OK, "none: 0.60 (0.50 to 0.70)", None),
        ("gain of both", State.OK, "cannot be run: RuntimeError: no", None),
    ]


def test_people_get_a_table_of_settings(capsys):
    Output().result({}, times(GAINS))
    told = capsys.readouterr().out
    assert "plain PyTorch: lenet small, batch 4, forward, 2 threads as run now" in " ".join(told.split())
    assert max(map(len, told.splitlines())) <= 80
    row = next(line for line in told.splitlines() if "memory kept  " in line)
    assert row.split()[2:] == ["50.0", "ms", "1.50", "(1.40", "to", "1.60)", "12"]


def test_the_document_has_all_that_was_measured():
    document = to_json(GAINS)
    assert document["failed"] == {"both": "RuntimeError: no"}
    assert document["settings"][1] == {
        "what": "memory kept", "median_s": 0.05, "low_s": 0.04, "high_s": 0.06,
        "gain": {"median": 1.5, "low": 1.4, "high": 1.6}, "gains": True, "faults": 12.4, "peak_bytes": 1 << 20,
        "advice": "how to get memory kept",
    }  # fmt: skip
