"""The rows of `make bench-zoo` in data/studies: each model's, and what is told of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Any

from figures.study import of_run
from judge_measure import WAYS
from judge_scores import TOLERANCES, scores
from run_facts import RunFacts

_RIVALS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "inference": {
        "eager": ("eager",), "kept": ("eager", "kept"), "inductor": ("inductor",), "frozen": ("inductor", "frozen"),
    },
    "training": {"eager": ("eager",), "kept": ("eager", "kept"), "inductor": ("inductor",)},
}  # fmt: skip
"""By mode, the rivals over which a mean is told, each with its ways of which the fastest counts."""


def model_rows(judge: str, records: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    """A row for each model. Raises ValueError where records are of different settings."""
    records = [record for record in records if "left_out" not in record]
    settings = {tuple(record["setting"].items()) for record in records}
    if len(settings) > 1:
        raise ValueError(f"records of different settings, {settings}, make no table")
    return [_row(judge, record) for record in records]


def means_row(judge: str, mode: str, records: Sequence[dict[str, Any]]) -> dict[str, object]:
    """What is told of all records of a mode; of those with "left_out" only the number is."""
    slow = sum("left_out" in record for record in records)
    records = [record for record in records if "left_out" not in record]
    found = [record for record in records if "speedup" in record["ways"]["eager"]]
    own = [record["ways"]["threadcast"] for record in found]
    right = [record for record in found if _is_right(record)]
    rivals = [who for who in WAYS[mode] if who != "threadcast"]
    ratios = {
        name: [_speed(record) / rival for record in right if (rival := _fastest(record, of))]
        for name, of in _RIVALS[mode].items()
    }
    seconds = [record.get("seconds", 0.0) for record in records]
    others = [record["name"] for record in records if record not in right]
    return {
        "judge": judge, "mode": mode, "models": len(found), "right": len(right),
        "planned": sum(any(map(_is_ours, _runs(way))) for way in own),
        **{f"over_{name}": f"{_geometric(of):.2f}" if (of := ratios.get(name)) else None
           for name in ("eager", "kept", "inductor", "frozen")},
        **{f"{name}_ran": len(ratios[name]) if name in ratios else None for name in ("inductor", "frozen")},
        "slower": len(found) - sum(_speed(record) >= 0.97 * _fastest(record, rivals) for record in right),
        "learning": sum(_last(way).get("learning", False) for way in own), "not_in_means": ", ".join(others),
        "slow": slow, "model_median_s": round(median(seconds)) if seconds else None,
        "all_minutes": round(sum(seconds) / 60),
    }  # fmt: skip


def score_rows(judge: str, mode: str, records: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    """GraphNet's scores S(t) and ES(t) of threadcast and of Inductor."""
    known = [record["ways"] for record in records if "speedup" in record.get("ways", {}).get("eager", {})]
    rows: list[dict[str, object]] = []
    for way in ("threadcast", "inductor"):
        levels = scores([ways.get(way) or {"error": ""} for ways in known])
        of_level = {f"{name}_{t}": f"{levels[t][i]:.2f}" for i, name in enumerate(("s", "es")) for t in TOLERANCES}
        rows.append({"judge": judge, "mode": mode, "way": way, **of_level})
    return rows


def _row(judge: str, record: dict[str, Any]) -> dict[str, object]:
    ways = {who: record["ways"].get(who, {}) for who in ("eager", "kept", "inductor", "frozen", "threadcast")}
    own = ways["threadcast"]
    settled, right = own.get("settled", {}), own.get("right")
    before, after = (", ".join(run for run, _ in own.get(when, {}).get("runs", [])) for when in ("settled", "ended"))
    return {
        "judge": judge, "mode": record["mode"], "model": record["name"],
        "library": record["name"].removeprefix("samples/").partition("/")[0],
        **{f"{who}_ms": way["step_s"] * 1e3 if "step_s" in way else None for who, way in ways.items()},
        **{who: f"{way['speedup']:.2f}" if "speedup" in way else None for who, way in ways.items() if who != "eager"},
        "correct_from": own.get("correct_from"), "right": "unknown" if right is None else right, "runs": before,
        "runs_then": "" if before == after else after,
        "learned_s": f"{settled['seconds']:.0f}" if settled else None, "learning": settled.get("learning"),
        "others_percent": round(100 * record.get("others", 0)), "run": of_run(RunFacts.from_json(record["run"])),
    }  # fmt: skip


def _is_right(record: dict[str, Any]) -> bool:
    own = record["ways"]["threadcast"]
    return own.get("right") is True and "speedup" in own


def _speed(record: dict[str, Any]) -> float:
    """How many times as fast as eager PyTorch threadcast is."""
    return float(record["ways"]["threadcast"]["speedup"])


def _fastest(record: dict[str, Any], of: Sequence[str]) -> float:
    """The same of the fastest of some ways; 0 where all failed or gave wrong results."""
    ways = (record["ways"].get(who, {}) for who in of)
    return max(0.0 if way.get("right") is False else way.get("speedup", 0.0) for way in ways)


def _is_ours(run: str) -> bool:
    """Whether what runs steps is a plan or a backend, and not PyTorch's own way of running them."""
    return run not in ("default", "measuring") and not run.startswith("eager")


def _runs(way: dict[str, Any]) -> list[str]:
    """What ran the steps after the turns; before them where it was being measured then."""
    after = [run for run, _ in _last(way).get("runs", [])]
    return after if set(after) - {"measuring"} else [run for run, _ in way.get("settled", {}).get("runs", [])]


def _last(way: dict[str, Any]) -> dict[str, Any]:
    """What is known after the turns; of a way that failed what was before."""
    found: dict[str, Any] = way.get("ended", way.get("settled", {}))
    return found


def _geometric(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))
