"""Measurements as a pyperf benchmark suite, for `python -m pyperf compare_to before.json after.json` and its like."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from threadcast.core import Measurement
from threadcast.core.atomic_file import replacing
from threadcast.core.errors import InvalidInput


def write_pyperf(measurements: Iterable[Measurement], path: str | Path) -> None:
    """Write one benchmark for each op and case, with one run for each measurement; on any error `path` is unchanged.

    Benchmarks are named by op key and case, with "cold" or "rotated" added for such caches, so that files of two
    machines or two days can be compared; the machine is added only where one file has several. Counters are left out:
    pyperf has no place for them. Needs pyperf. InvalidInput where there are no measurements, or a sample is 0 s.
    """
    import pyperf

    written = list(measurements)
    if not written:
        raise InvalidInput("there are no measurements to write")
    several = len({m.machine.fingerprint for m in written}) > 1
    runs: dict[str, list[Any]] = {}
    for m in written:
        name = _name(m, with_machine=several)
        values = [sample.seconds for sample in m.samples]
        if min(values) <= 0:
            raise InvalidInput(f"{name} has a sample of 0 s, which pyperf cannot hold; leave it out")
        metadata = _metadata(m, name)
        runs.setdefault(name, []).append(pyperf.Run(values, metadata=metadata, collect_metadata=False))
    suite = pyperf.BenchmarkSuite([pyperf.Benchmark(of_name) for of_name in runs.values()])
    with replacing(Path(path)) as draft:
        suite.dump(str(draft))


def _name(m: Measurement, *, with_machine: bool) -> str:
    parts = [m.op.key, str(m.case)]
    if m.conditions.get("cache") in ("cold", "rotated"):
        parts.append(m.conditions["cache"])
    if with_machine:
        parts.append(m.machine.fingerprint)
    return " ".join(parts)


def _metadata(m: Measurement, name: str) -> dict[str, Any]:
    conditions = {f"condition_{key}": str(value) for key, value in m.conditions.items() if value not in (None, "")}
    return {
        **conditions, "name": name, "unit": "second", "machine": m.machine.fingerprint, "op": m.op.key,
        "kind": m.op.kind, "threads": m.case.threads, "affinity": m.case.affinity.value,
    }  # fmt: skip
