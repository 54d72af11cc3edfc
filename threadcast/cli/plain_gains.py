"""The gains of plain PyTorch's settings as JSON, as tables, and as findings of `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from threadcast.cli.findings import Finding, State
from threadcast.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table

    from threadcast.cli.plain.gains import PlainGains


def to_json(gains: PlainGains) -> dict[str, Any]:
    """The gains as a JSON object: for each setting times in seconds, gain over the present step, page faults, memory.

    Times are medians with quartiles, gains medians with 95 % intervals.
    """
    settings = [
        {
            "what": timed.setting.name,
            "median_s": timed.seconds.median,
            "low_s": timed.seconds.low,
            "high_s": timed.seconds.high,
            "gain": {"median": timed.gain.gain, "low": timed.gain.low, "high": timed.gain.high},
            "gains": timed.gains,
            "faults": timed.faults,
            "peak_bytes": timed.peak_bytes,
            "advice": timed.setting.advice,
        }
        for timed in gains.timed
    ]
    return {
        "network": gains.network, "size": gains.size, "batch": gains.batch, "mode": gains.mode,
        "threads": gains.threads, "rounds": gains.rounds, "settings": settings, "failed": dict(gains.failed),
    }  # fmt: skip


def times(gains: PlainGains) -> Table:
    """A table of all settings: step times, gain with its interval, and page faults."""
    rows = [[t.setting.name, t.seconds.median, str(t.gain), round(t.faults)] for t in gains.timed]
    threads = f"{gains.threads} thread{'s' if gains.threads > 1 else ''}"
    title = f"plain PyTorch: {gains.network} {gains.size}, batch {gains.batch}, {gains.mode}, {threads} as run now"
    columns = ("setting", "median_s", "gain, 95 % interval", "page faults")
    return table(columns, rows, title=title)


def to_findings(gains: PlainGains) -> list[Finding]:
    """A finding for each setting but the first, which is the step as it is run now.

    With advice where there is a gain.
    """
    findings = []
    for timed in gains.timed[1:]:
        topic = f"gain of {timed.setting.name}"
        if timed.gains:
            findings.append(Finding(topic, State.NOTE, str(timed.gain), timed.setting.advice))
        else:
            beyond = " beyond noise" if timed.gain.high > 1 else ""
            findings.append(Finding(topic, State.OK, f"none{beyond}: {timed.gain}"))
    return findings + [
        Finding(f"gain of {name}", State.OK, f"cannot be run: {why}") for name, why in gains.failed.items()
    ]
