"""Functions of `train` and `compare`: the models to compare, how they are compared, and the table of the results."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.output import Output, table
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.core.figures import MOST_SHARE, significant
from threadcast.core.figures import percent as percent_text

if TYPE_CHECKING:
    from rich.table import Table

    from threadcast.core import Measurement
    from threadcast.models.base import PerformanceModel
    from threadcast.models.evaluation import Evaluation
    from threadcast.models.judgement import Row
    from threadcast.models.lead import Lead
    from threadcast.models.splits import Split

SAMPLES = (0, 1, 3, 4, 8, 16)
"""Numbers of sampled cases of an op with which models are compared by default."""

SPLITS = ("auto", "new_network", "new_shape", "new_kind", "new_machine")


def models_asked_for(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The given names of models, or all that are registered where none is given; a usage error for an unknown name."""
    from threadcast.models import registry_of_kinds

    for name in names:
        if name not in registry_of_kinds.names():
            raise click.BadParameter(f"no model is called {name!r}; known: {', '.join(registry_of_kinds.names())}")
    return tuple(dict.fromkeys(names)) or registry_of_kinds.names()


def make_models(
    names: Sequence[str], samples: Sequence[int], measurements: Sequence[Measurement]
) -> list[tuple[str, PerformanceModel]]:
    """Unfitted models of these names, each with the name of its row.

    A model that takes a number of samples is there once for each of `samples`, or once with the suggested number where
    `samples` is empty.
    """
    from threadcast.models import registry_of_kinds
    from threadcast.models.sampling import suggested_samples

    samples = samples or [suggested_samples(_cases_of_smallest(measurements))]
    models = []
    for name in names:
        if not registry_of_kinds.takes(name, "samples"):
            models.append((name, registry_of_kinds.create(name)))
            continue
        for count in samples:
            try:
                models.append((name, registry_of_kinds.create(name, samples=count)))
            except InvalidInput:
                if count:
                    raise  # 0 is left out for a model that needs samples
    return models


def compared_samples(measurements: Sequence[Measurement]) -> list[int]:
    """The numbers of samples to compare models with: those that leave at least one case to forecast on every
    machine."""
    return [count for count in SAMPLES if count < max(_cases_of_smallest(measurements), 2)]


def _cases_of_smallest(measurements: Sequence[Measurement]) -> int:
    """The most cases measured of one op, on the machine where that number is smallest."""
    from threadcast.models.measured import group

    most: dict[str, int] = {}
    for entry in group(measurements):
        fingerprint = entry.machine.fingerprint
        most[fingerprint] = max(most.get(fingerprint, 0), len(entry.by_case))
    return min(most.values(), default=1)


def choose_split(
    wanted: str, measurements: Sequence[Measurement], networks_of: Mapping[str, Collection[str]], *, known: int = 0
) -> tuple[Split, str]:
    """The split of this name; for "auto" new networks where at least two can be left out, else new shapes.

    `known` ops of a left-out kind or machine are learned from.
    """
    from threadcast.models import splits
    from threadcast.models.measured import group

    if known and wanted not in ("new_kind", "new_machine"):
        raise click.UsageError("--known is for --split new_kind and new_machine")
    by_network = splits.new_network(networks_of)
    if wanted == "auto":
        try:
            wanted = "new_network" if len(by_network(group(measurements))) > 1 else "new_shape"
        except ModelError:
            wanted = "new_shape"
    split_makers = {
        "new_network": by_network, "new_shape": splits.new_shape(), "new_kind": splits.new_kind(known=known),
        "new_machine": splits.new_machine(known=known),
    }  # fmt: skip
    return split_makers[wanted], wanted


def judge(
    output: Output,
    measurements: Sequence[Measurement],
    models: Sequence[tuple[str, PerformanceModel]],
    split: tuple[Split, str],
    *,
    jobs: int | None,
    steps: int,
) -> Evaluation:
    """Compare the models, with progress, and warn about ops that were left out and models that failed."""
    from threadcast.core.topology import usable_cores
    from threadcast.models.evaluation import evaluate

    with output.progress("fitting and judging models") as bar:
        evaluation = evaluate(
            measurements, models, split=split[0], split_name=split[1], jobs=jobs or usable_cores().cores, steps=steps,
            progress=lambda done, total: bar.update(done, total=total),
        )  # fmt: skip
    for key, reason in evaluation.left_out.items():
        output.warn(f"{key} was left out: {reason}")
    for doubt in evaluation.odd_units[:SAID]:
        output.warn(doubt)
    if (more := len(evaluation.odd_units) - SAID) > 0:
        output.warn(f"{more} more times seem to be in another unit; --json lists them")
    if lost := [row for row in evaluation.rows if row.problem]:
        rest = f"; neither could {len(lost) - 1} more rows, of which --json says why" if len(lost) > 1 else ""
        output.warn(f"{lost[0].model} could not be judged by {lost[0].unusable} ops: {lost[0].problem}{rest}")
    return evaluation


SAID = 5
"""Most warnings of one sort that are printed."""


def shown(rows: Sequence[Row], *, title: str) -> Table:
    """The rows as a table, the cheapest model to follow first, with as many columns as stdout is wide enough for;
    `Row.to_json` has more.

    "-" under acc: every case was sampled, so none was left to forecast. Where a model could not be judged by some ops,
    their number takes the place of the microseconds.
    """
    from threadcast.models.judgement import ranked

    rows = ranked(rows)
    lost = any(row.unusable for row in rows)
    columns: dict[str, list[Any]] = {
        "model\n": [row.model for row in rows], "n\ncases": [_whole(row.samples) for row in rows],
        "acc\n%": ["-" if row.accuracy is None else percent_text(row.accuracy) for row in rows],
        "<10%\n%": [percent(row.within_10) for row in rows], "in 90%\n%": [percent(row.coverage_90) for row in rows],
        "regret\n%": [regret(row) for row in rows], "cost\n%": [percent(row.cost) for row in rows],
        "p95\n%": [percent(row.regret_p95) for row in rows],
        "R2\n": ["<0" if row.r2 is not None and row.r2 < 0 else row.r2 for row in rows],
        "speed-up\ntimes": [str(row.speedup_over_all or "-") for row in rows],
        "with us\ntimes": [str(row.speedup_with_model_time or "-") for row in rows],
        "fit\ns": [row.fit_s for row in rows],
        **({"lost\nops": [row.unusable for row in rows]} if lost else {"call\nus": [row.call_us for row in rows]}),
    }  # fmt: skip
    title = f"{title}, {max(row.ops for row in rows)} ops{_context(rows)}"
    return table(list(columns), list(zip(*columns.values(), strict=True)), title=title, unneeded=_UNNEEDED)


_UNNEEDED = (
    ("with us\ntimes", "fit\ns", "R2\n", "p95\n%", "speed-up\ntimes"), ("<10%\n%",), ("in 90%\n%",), ("call\nus",),
    ("acc\n%",), ("regret\n%",),
)  # fmt: skip
"""Columns without which a narrow table does."""


def said(lead: Lead | None) -> str:
    """Which model is best, by how much, and how sure that is."""
    if lead is None:
        return "best: only one model could be judged, so none is better than another"
    best, other = lead.best, lead.next
    if best.regret_all_threads == 0:
        return f"best: no model is needed: all threads are best for each of the {best.ops} ops"
    interval = f"95 % interval {significant(100 * lead.low, 2)} to {significant(100 * lead.high, 2)}, {lead.ops} ops"
    more = percent_text(best.cost or 0.0, 2)
    found = (
        f"best: {_named(best)}: {best.steps:,} runs of each op take {more} % longer than at their best thread counts, "
        "measuring included"
    )
    if lead.is_shown:
        found += f"; by {_named(other)} {significant(100 * lead.more, 2)} points more ({interval})"
    else:
        found += f"; not told apart from {_named(other)}: {significant(100 * lead.more, 2)} points more ({interval})"
    return found


def _named(row: Row) -> str:
    cases = f"{row.samples:.3g} case{'s' * (row.samples != 1)}" if row.samples else "nothing"
    return f"{row.model} with {cases} measured"


def regret(row: Row) -> str:
    """The mean regret in percent, and its standard error, to the first digit of this one."""
    if row.regret_mean is None:
        return "-"
    mean, error = 100 * row.regret_mean, 100 * (row.regret_spread or 0.0)
    if row.regret_mean > MOST_SHARE:
        return percent_text(row.regret_mean)
    if not error:
        return significant(mean) + ("" if row.regret_spread is None else "\u00b10")
    places = min(max(-math.floor(math.log10(error)), 0), 3)
    return f"{mean:.{places}f}\u00b1{error:.{places}f}"


def _context(rows: Sequence[Row]) -> str:
    """Text on the noise floor, which no model can beat, and on the regret of always using all threads."""
    judged = next((row for row in rows if row.regret_all_threads is not None), None)
    if judged is None or judged.regret_all_threads is None:
        return ""
    regret = f"; all threads: regret {percent_text(judged.regret_all_threads)} %"
    floor = judged.noise_floor
    return regret if floor is None else f"; noise floor {100 * floor:.4g} %{regret}"


def percent(share: float | None) -> float | str | None:
    """The share in percent, as text where it is beyond what `figures.percent` writes out; None stays None."""
    return share if share is None else 100 * share if 0 <= share <= MOST_SHARE else percent_text(share)


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value
