"""The pages of `make bench-zoo` and `make bench-graphnet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import exp, log
from statistics import median
from typing import Any

from judge_measure import FAST, SLOW_S, Setting
from judge_scores import TOLERANCES, scores
from judged import SENSITIVITY, TOLERANCE
from run_facts import RunFacts, Runs

_TITLES = {"zoo": "Models of five libraries", "graphnet": "Graphs of GraphNet"}
_TEXT = """# {title}{training}

`make bench-{judge}{fast}`, {runs}.

{what} Eager PyTorch, Inductor (`torch.compile(model)`) and threadcast (`optimize`, or `optimize_training` by SGD with
momentum) ran in processes of their own, with no measurement or plan stored before (compiled code of earlier runs was
kept, Inductor's too), stopped except in their turns: {turns} turns of {turn_s} s after threadcast had
learned for at most {settle_s:.0f} s, in which it may take any time and has the cores to itself between steps, and
Inductor had compiled for at most {limit_s:.0f} s. A model took {median_s:.0f} s in the median, {total_min:.0f} minutes
all together. *learned* is how long threadcast learned; "+" where it was not at its end, so that faster plans or
backends may not have been tried. Milliseconds are medians; *speed-up* is the median ratio to eager of turns side by
side. *correct from* is GraphNet's lowest tolerance level t at which all results agree with eager's (at -5 float32
numbers agree to 1.3e-6, relatively); in training these are three losses, and all parameters and buffers after three
steps. Models are *right* where results, and in training movements of parameters and buffers, differ from eager's by
{tolerance:g} of the largest number at most, or by {sensitivity} times what eager's own differ by with another number of
threads or, in training, from weights that differ by a rounding.
*others*: the part of all cores' time that other processes used meanwhile.

{summary}
"""
_WHAT = {
    "zoo": "Models of torchvision, timm, transformers, torchaudio and torch_geometric with random weights of one seed.",
    "graphnet": "Computation graphs that others extracted from published models (PaddlePaddle/GraphNet, MIT), with the "
    f"tensors that GraphNet's code makes, those whose step takes up to {SLOW_S} s in eager PyTorch.",
}


def page(judge: str, records: Sequence[dict[str, Any]]) -> str:
    """The text of the page of these records; of those with "left_out" only the number is told."""
    slow = sum("left_out" in record for record in records)
    records = [record for record in records if "left_out" not in record]
    runs = Runs(RunFacts.from_json(record["run"]) for record in records)
    settings = {tuple(record["setting"].items()) for record in records}
    if len(settings) != 1:
        raise ValueError(f"records of different settings, {settings}, make no table")
    setting = dict(*settings)
    seconds = [record.get("seconds", 0.0) for record in records]
    modes = {record["mode"] for record in records}
    parts = [
        _TEXT.format(
            title=_TITLES[judge], judge=judge, runs=runs, what=_WHAT[judge], **setting,
            tolerance=TOLERANCE, sensitivity=SENSITIVITY, training=", training" if modes == {"training"} else "",
            fast=_fast(setting) + _only_mode(judge, modes),
            median_s=median(seconds), total_min=sum(seconds) / 60,
            summary="\n".join(_summary(records, mode) for mode in ("inference", "training"))
            + (f"- {slow} graphs more were left out, as a step takes longer than {SLOW_S} s.\n" if slow else ""),
        )
    ]  # fmt: skip
    for mode in ("inference", "training"):
        of_mode = [record for record in records if record["mode"] == mode]
        if of_mode:
            parts.append(
                f"\n## {mode.capitalize()}\n\n| model | eager | Inductor | threadcast | speed-up | Inductor's "
                f"| correct from | runs | learned | others |\n{'|---' * 10}|\n"
                + "".join(_row(record, runs) for record in of_mode)
            )
            parts.append(_scores(of_mode))
    return "".join(parts) + f"\n{runs.legend()}"


def _fast(setting: Mapping[str, Any]) -> str:
    """The options of the command that make this setting of `FAST`; nothing where it is another."""
    if replace(FAST, settle_s=setting["settle_s"]) != Setting(**setting):
        return ""
    return " FAST=1" if setting == asdict(FAST) else f" FAST=1 SECONDS={setting['settle_s']:g}"


def _only_mode(judge: str, modes: set[str]) -> str:
    """The option of the command that measured one mode of the two that there are."""
    return f" MODES={min(modes)}" if judge == "zoo" and len(modes) == 1 else ""


def _row(record: dict[str, Any], runs: Runs) -> str:
    ways = record["ways"]
    own = ways.get("threadcast", {})
    ran = ", ".join(run for run, _ in own.get("settled", {}).get("runs", []))
    mark = runs.mark(RunFacts.from_json(record["run"]))
    cells = [
        record["name"] + mark, *(_ms(ways.get(who, {})) for who in ("eager", "inductor", "threadcast")),
        _number(own.get("speedup")), _number(ways.get("inductor", {}).get("speedup")),
        str(own.get("correct_from", "-")) + (", wrong" if own.get("right") is False else ""),
        ran, _learned(own), f"{record.get('others', 0):.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _learned(way: dict[str, Any]) -> str:
    settled = way.get("settled")
    return "-" if settled is None else f"{settled['seconds']:.0f} s{' +' if settled['learning'] else ''}"


def _ms(way: dict[str, Any]) -> str:
    return "failed" if "error" in way else f"{way['step_s'] * 1e3:.3g}" if "step_s" in way else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _summary(records: Sequence[dict[str, Any]], mode: str) -> str:
    of_mode = [record for record in records if record["mode"] == mode]
    ways = [record["ways"] for record in of_mode if "speedup" in record["ways"]["eager"]]
    if not ways:
        return ""
    failed = [record["name"] for record in of_mode if "speedup" not in record["ways"]["eager"]]
    left_out = f" Left out, as eager PyTorch failed: {', '.join(failed)}." if failed else ""
    own = [found["threadcast"] for found in ways]
    right = sum(way.get("right") is True for way in own)
    planned = sum(any(run not in ("default", "measuring") for run, _ in _runs(way)) for way in own)
    learning = sum(way.get("settled", {}).get("learning", False) for way in own)
    both = [(found["threadcast"], found["inductor"]) for found in ways if "speedup" in found["inductor"]]
    slower = sum(
        way.get("speedup", 0.0) < 0.97 * max(1.0, found["inductor"].get("speedup", 0.0))
        for way, found in zip(own, ways, strict=True)
    )
    over = _geometric([way["speedup"] for way in own if "speedup" in way])
    over_inductor = _geometric([way["speedup"] / other["speedup"] for way, other in both if "speedup" in way])
    return (
        f"- {mode.capitalize()}: {len(ways)} models, {right} right, {planned} run by a plan, parts or a backend; "
        f"geometric mean {over:.2f} over eager, {over_inductor:.2f} over Inductor ({len(both)} that Inductor ran); "
        f"{slower} slower than 0.97 of the faster of both; {learning} were still learning.{left_out}"
    )


def _runs(way: dict[str, Any]) -> list[list[str]]:
    found: list[list[str]] = way.get("settled", {}).get("runs", [])
    return found


def _geometric(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values)) if values else 1.0


def _scores(records: Sequence[dict[str, Any]]) -> str:
    found = {
        who: scores([record["ways"].get(who) or {"error": ""} for record in records])
        for who in ("threadcast", "inductor")
    }
    head = f"\nGraphNet's scores, S(t) and ES(t):\n\n| t |{''.join(f' {t} |' for t in TOLERANCES)}\n{'|---' * 16}|\n"
    rows = [
        f"| {who}, {name} |{''.join(f' {levels[t][i]:.2f} |' for t in TOLERANCES)}\n"
        for who, levels in found.items()
        for i, name in enumerate(("S", "ES"))
    ]
    return head + "".join(rows)
