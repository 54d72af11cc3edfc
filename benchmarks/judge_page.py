"""The pages of `make bench-zoo` and `make bench-graphnet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import exp, log
from statistics import median
from typing import Any

from judge_measure import FAST, SLOW_S, WAYS, Setting
from judge_scores import TOLERANCES, scores
from judged import SENSITIVITY, TOLERANCE
from run_facts import RunFacts, Runs

_TITLES = {"zoo": "Models of five libraries", "graphnet": "Graphs of GraphNet"}
_TEXT = """# {title}{training}

`make bench-{judge}{fast}`, {runs}.

{what} Each way ran in a process of its own, with no measurement or plan stored before (compiled code of earlier runs
was kept, Inductor's too), stopped except in its turns: {turns} turns of {turn_s} s after threadcast had learned for at
most {settle_s:.0f} s, in which it may take any time and has the cores to itself between steps, and Inductor had
compiled for {compiled_s:.0f} s at most. A model took {median_s:.0f} s in the median, all {total_min:.0f} minutes.

- *eager* is PyTorch as it is. *kept* is the same in a process that keeps freed memory, as threadcast sets it
  (`mallopt`): what that alone gains stands apart.
- *Inductor* is `torch.compile(model)`{frozen}, with kept memory, too.
- *threadcast* is {own}.

*learned* is how long threadcast learned; "+" where it was not at its end, so that faster plans or backends may not have
been tried. *runs* is what ran its steps before the turns, and after them where that is something else. Milliseconds are
medians; the numbers after them are median ratios of eager's time to that of another way, of turns side by side.
*correct from* is GraphNet's lowest tolerance level t at which all results agree with eager's (at -5 float32 numbers
agree to 1.3e-6, relatively); in training these are three losses, and all parameters and buffers after three steps.
Models are *right* where results, and in training movements of parameters and buffers, differ from eager's by
{tolerance:g} of the largest number at most, or by {sensitivity} times what eager's own differ by with another number of
threads or, in training, from weights that differ by a rounding. threadcast's are looked at before and after the turns.
*others*: the part of all cores' time that other processes used meanwhile.

{summary}
"""
_NAMES = {
    "eager": "eager", "kept": "kept", "inductor": "Inductor", "frozen": "Inductor, frozen", "threadcast": "threadcast",
}  # fmt: skip
_OWN = {"inference": "`optimize`", "training": "`optimize_training` by SGD with momentum"}
_RIVALS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "inference": {
        "eager": ("eager",), "the faster of *eager* and *kept*": ("eager", "kept"), "Inductor": ("inductor",),
        "the faster of both of Inductor's": ("inductor", "frozen"),
    },
    "training": {
        "eager": ("eager",), "the faster of *eager* and *kept*": ("eager", "kept"), "Inductor": ("inductor",),
    },
}  # fmt: skip
"""By mode, the rivals over which a mean is told, each with its ways of which the fastest counts."""
_FROZEN = (
    ", *Inductor, frozen* the same with `torch._inductor.config.freezing`, which copies weights as threadcast may; "
    "both compiled at the same time"
)
_WHAT = {
    "zoo": "Models of torchvision, timm, transformers, torchaudio and torch_geometric with random weights of one seed.",
    "graphnet": "Computation graphs that others extracted from published models (PaddlePaddle/GraphNet, MIT), with the "
    f"tensors that GraphNet's code makes, those whose step takes up to {SLOW_S} s in eager PyTorch.",
}


def page(judge: str, records: Sequence[dict[str, Any]]) -> str:
    """The text of the page of these records; of those with "left_out" only the number is told."""
    slow = sum("left_out" in record for record in records)
    records = [record for record in records if "left_out" not in record]
    if not records:
        raise ValueError("all models were left out: there is nothing to tell")
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
            compiled_s=setting["settle_s"] + setting["limit_s"],
            fast=_fast(setting) + _only_mode(judge, modes), own=" or ".join(_OWN[mode] for mode in sorted(modes)),
            frozen=_FROZEN if "inference" in modes else "",
            median_s=median(seconds), total_min=sum(seconds) / 60,
            summary="\n".join(_summary(records, mode) for mode in ("inference", "training"))
            + (f"- {slow} graphs more were left out, as a step takes longer than {SLOW_S} s.\n" if slow else ""),
        )
    ]  # fmt: skip
    for mode in ("inference", "training"):
        of_mode = [record for record in records if record["mode"] == mode]
        if of_mode:
            parts.append(
                f"\n## {mode.capitalize()}\n\n{_head(mode)}" + "".join(_row(record, runs) for record in of_mode)
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


def _head(mode: str) -> str:
    ways = [_NAMES[who] for who in WAYS[mode]]
    names = ["model", *(f"{name}, ms" for name in ways), *ways[1:], "correct from", "runs", "learned", "others"]
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|\n"


def _row(record: dict[str, Any], runs: Runs) -> str:
    ways = {who: record["ways"].get(who, {}) for who in WAYS[record["mode"]]}
    own = ways["threadcast"]
    mark = runs.mark(RunFacts.from_json(record["run"]))
    cells = [
        record["name"] + mark, *map(_ms, ways.values()),
        *(_number(way.get("speedup")) for who, way in ways.items() if who != "eager"),
        str(own.get("correct_from", "-")) + (", wrong" if own.get("right") is False else ""),
        _ran(own), _learned(own), f"{record.get('others', 0):.0%}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _ran(way: dict[str, Any]) -> str:
    """What ran the steps before the turns, and after them where it is something else."""
    before, after = (", ".join(run for run, _ in way.get(when, {}).get("runs", [])) for when in ("settled", "ended"))
    return before if before == after or not after else f"{before}; then {after}"


def _learned(way: dict[str, Any]) -> str:
    settled = way.get("settled")
    return "-" if settled is None else f"{settled['seconds']:.0f} s{' +' if settled['learning'] else ''}"


def _ms(way: dict[str, Any]) -> str:
    return "failed" if "error" in way else f"{way['step_s'] * 1e3:.3g}" if "step_s" in way else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _summary(records: Sequence[dict[str, Any]], mode: str) -> str:
    of_mode = [record for record in records if record["mode"] == mode]
    found = [record for record in of_mode if "speedup" in record["ways"]["eager"]]
    if not found:
        return ""
    own = [record["ways"]["threadcast"] for record in found]
    planned = sum(any(map(_is_ours, _runs(way))) for way in own)
    learning = sum(_last(way).get("learning", False) for way in own)
    right = [record for record in found if _is_right(record)]
    rivals = [who for who in WAYS[mode] if who != "threadcast"]
    slower = len(found) - sum(_speed(record) >= 0.97 * _fastest(record, rivals) for record in right)
    means = [
        f"{_geometric(ratios):.2f} over {name}" + (f" ({len(ratios)} that it ran)" if len(ratios) < len(right) else "")
        for name, of in _RIVALS[mode].items()
        if (ratios := [_speed(record) / rival for record in right if (rival := _fastest(record, of))])
    ]
    left_out = _left_out("eager PyTorch failed", [record for record in of_mode if record not in found])
    others = [record for record in found if record not in right]
    left_out += _left_out("threadcast failed, or its results were wrong or cannot be judged", others)
    return (
        f"- {mode.capitalize()}: {len(found)} models, {len(right)} right, {planned} run by a plan or a backend; "
        f"geometric mean {', '.join(means) or 'of none'}; {slower} failed, not right, or slower than 0.97 of the "
        f"fastest of all these; {learning} were still learning after the turns.{left_out}"
    )


def _left_out(why: str, records: Sequence[dict[str, Any]]) -> str:
    """Names that are not in the means."""
    return f" Not in the means, as {why}: {', '.join(record['name'] for record in records)}." if records else ""


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
    return exp(sum(map(log, values)) / len(values)) if values else 1.0


def _scores(records: Sequence[dict[str, Any]]) -> str:
    known = [record["ways"] for record in records if "speedup" in record["ways"]["eager"]]
    found = {who: scores([ways.get(who) or {"error": ""} for ways in known]) for who in ("threadcast", "inductor")}
    head = f"\nGraphNet's scores, S(t) and ES(t):\n\n| t |{''.join(f' {t} |' for t in TOLERANCES)}\n{'|---' * 16}|\n"
    rows = [
        f"| {who}, {name} |{''.join(f' {levels[t][i]:.2f} |' for t in TOLERANCES)}\n"
        for who, levels in found.items()
        for i, name in enumerate(("S", "ES"))
    ]
    return head + "".join(rows)
