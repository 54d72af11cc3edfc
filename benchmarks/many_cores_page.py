"""Tables of what `benchmarks/many_cores.py` found, made from its lines of results alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from run_facts import RunFacts, Runs

Line = Mapping[str, Any]

_HEAD = """# On many cores

`make bench-many-cores`, {runs}.
{again}
{software}

"""


def page(lines: Sequence[Line], *, recorded: int) -> str:
    """The whole page; `recorded` is the number of measurements in the recording."""
    runs = Runs(RunFacts.from_json(line["run"]) for line in lines if line["part"] == "run")
    software = next((line["software"] for line in lines if line["part"] == "run"), {})
    named = ", ".join(f"{name} {version}" for name, version in software.items() if version)
    head = _HEAD.format(runs=runs, again=runs.legend(), software=f"Software: {named}.")
    parts = (correctness, steps, forecasts, processes, times)
    tables = [table for part in parts if (table := part(lines))]
    return head + "\n".join([*tables, f"The recording has {recorded} measurements.\n"])


def _of(lines: Iterable[Line], part: str) -> list[Line]:
    return [line for line in lines if line["part"] == part]


def correctness(lines: Sequence[Line]) -> str:
    """How many networks and modules were right, refused, different by random plans over all cores."""
    found = _of(lines, "correctness")
    if not found:
        return ""
    rows = [
        "## Random plans over all cores, against eager PyTorch", "",
        "| what | right | refused | eager cannot | different |", "|---|---|---|---|---|",
    ]  # fmt: skip
    kinds: dict[str, Counter[str]] = {}
    for line in found:
        what = "networks" if " plan " in line["key"] else "modules"
        kinds.setdefault(f"{what}, {line['key'].split()[1]}", Counter())[line["status"]] += 1
    for what, counts in sorted(kinds.items()):
        cells = " | ".join(str(counts[one]) for one in ("right", "refused", "eager cannot", "different"))
        rows.append(f"| {what} | {cells} |")
    bad = [f"- {line['key']}: {line['status']}, {line['reason']}" for line in found if line["status"] != "right"]
    return "\n".join([*rows, "", *([*bad, ""] if bad else [])])


def steps(lines: Sequence[Line]) -> str:
    """Steps of every contender in ms, and their ratios to threadcast's: above 1 where threadcast is faster."""
    found = _cases(lines)
    if not found:
        return ""
    counts = sorted({int(n) for line in found for n in _times(line, "eager")})
    rows = [
        "## Steps", "",
        "Milliseconds, medians. *eager*: as people run it, at each thread count. *best eager*: the fastest of it, and "
        "of the same with malloc keeping memory and images in channels last. *threadcast* learned before, for the "
        "seconds given, with nothing else to do (`engine.tuning_share` 1), and by plans alone (`backends=False`); "
        "*measuring*: it had not decided then; *learning*: it had, and was trying other layouts and fused operators "
        "beside the steps that were timed. Ratios above 1: threadcast is faster.", "",
        "| case | mode | " + "".join(f"eager, {n} | " for n in counts) + "best eager | setting | torch.compile "
        "| threadcast | runs | eager, all / ours | best eager / ours | compiled / ours | learned for, s | spread |",
        "|---" * (12 + len(counts)) + "|",
    ]  # fmt: skip
    ratios: dict[str, list[tuple[float, float, float]]] = {}
    for line in found:
        ours = line["contenders"].get("threadcast")
        ours_s = _median(ours, line["cores"])
        best = min(
            ((s, f"{who}, {n} threads") for who in ("eager", "eager, tuned") for n, s in _times(line, who).items()),
            default=(math.nan, ""),
        )
        compiled_s = _median(line["contenders"].get("torch.compile"), line["cores"])
        usual_s = _times(line, "eager").get(str(line["cores"]), math.nan)
        row = (usual_s / ours_s, best[0] / ours_s, compiled_s / ours_s)
        ratios.setdefault(line["mode"], []).append(row)
        eager = "".join(f"{_ms(_times(line, 'eager').get(str(n), math.nan))} | " for n in counts)
        runs = f"{ours.get('runs')}, {ours.get('layout', '')}" if ours else "failed"
        runs += ", learning" if ours and ours.get("learning") and ours.get("runs") != "measuring" else ""
        learned = f"{ours['settled_s']:.1f}" if ours and "settled_s" in ours else "nan"
        rows.append(
            f"| {line['case']} | {line['mode']} | {eager}{_ms(best[0])} | {best[1]} | {_ms(compiled_s)} "
            f"| {_ms(ours_s)} | {runs} | {row[0]:.2f} | {row[1]:.2f} | {row[2]:.2f} | {learned} "
            f"| {_spread(ours, line['cores'])} |"
        )
    empty = " |" * (len(counts) + 5)
    for mode, of_mode in ratios.items():
        means = [_mean([row[i] for row in of_mode]) for i in range(3)]
        rows.append(f"| geometric mean | {mode} |{empty} {means[0]:.2f} | {means[1]:.2f} | {means[2]:.2f} | | |")
    failed = [f"- {line['key']}, {who}: {why}" for line in found for who, why in line["failed"].items()]
    return "\n".join([*rows, "", *([*failed, ""] if failed else [])])


def _cases(lines: Sequence[Line]) -> list[Line]:
    """Of each case the line in which most contenders ran, the later one of two."""
    best: dict[str, Line] = {}
    for line in _of(lines, "steps"):
        if line["key"] not in best or len(line["contenders"]) >= len(best[line["key"]]["contenders"]):
            best[line["key"]] = line
    return list(best.values())


def _times(line: Line, who: str) -> dict[str, float]:
    """Median seconds of a contender by its thread count."""
    one = line["contenders"].get(who)
    return {n: found["median_s"] for n, found in one["by_threads"].items()} if one else {}


def _median(one: Mapping[str, Any] | None, cores: int) -> float:
    return float(one["by_threads"].get(str(cores), {}).get("median_s", math.nan)) if one else math.nan


def _spread(one: Mapping[str, Any] | None, cores: int) -> str:
    found = one["by_threads"].get(str(cores)) if one else None
    return f"{(found['high_s'] - found['low_s']) / found['median_s']:.0%}" if found else "nan"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def _mean(ratios: Iterable[float]) -> float:
    real = [ratio for ratio in ratios if not math.isnan(ratio)]
    return geometric_mean(real) if real else math.nan


def forecasts(lines: Sequence[Line]) -> str:
    """How far the plans' makespans were from the steps that followed, of the steps that keep a plan."""
    found = []
    for line in _cases(lines):
        ours = line["contenders"].get("threadcast") or {}
        if ours.get("runs") == "plan" and ours.get("predicted_s"):
            found.append((line, ours, ours["then_s"] / ours["predicted_s"] - 1))
    if not found:
        return ""
    rows = [
        "## What plans forecast", "",
        "| case | mode | forecast, ms | then, ms | off by | bound, ms | policy | cores of an op |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for line, ours, error in found:
        rows.append(
            f"| {line['case']} | {line['mode']} | {_ms(ours['predicted_s'])} | {_ms(ours['then_s'])} | {error:+.0%} | "
            f"{_ms(ours['bound_s'])} | {ours['policy']} | {', '.join(map(str, ours['widths']))} |"
        )
    errors = [abs(error) for *_, error in found]
    rows.append(f"\nMedian size of the error {median(errors):.0%}, largest {max(errors):.0%}.")
    return "\n".join([*rows, ""])


def processes(lines: Sequence[Line]) -> str:
    """Progress of several processes together: the sum over them of steps a second, as shares of one alone."""
    found = [line for line in _of(lines, "processes") if "rates" in line]
    alone = {line["network"]: line["rates"][0] for line in found if line["rule"] == "alone" and line["rates"][0]}
    progress: dict[tuple[int, str], dict[str, float]] = {}
    for line in found:
        if line["rule"] != "alone" and line["network"] in alone:
            of_set = progress.setdefault((line["count"], line["network"]), {})
            of_set[line["rule"]] = sum(line["rates"]) / alone[line["network"]]
    if not progress:
        return ""
    rows = [
        "## Processes that share the cores", "",
        "Progress: the sum over processes of steps a second, each as a share of what one makes alone on all cores.", "",
        "| processes | left alone | by hand | threadcast | over left alone | of by hand |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for (count, network), of_set in progress.items():
        left, hand, ours = (of_set.get(rule, math.nan) for rule in ("left alone", "by hand", "threadcast"))
        ratios = (ours / left if left else math.inf, ours / hand if hand else math.inf)
        rows.append(f"| {count} {network} | {left:.2f} | {hand:.2f} | {ours:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return "\n".join([*rows, ""])


def times(lines: Sequence[Line]) -> str:
    """How long each part took and how it ended."""
    found = _of(lines, "part")
    rows = ["## How long it took", "", "| part | given, s | took, s | ended |", "|---|---|---|---|"]
    rows += [f"| {line['name']} | {line['given_s']:.0f} | {line['took_s']:.0f} | {line['ended']} |" for line in found]
    return "\n".join([*rows, ""]) if found else ""
