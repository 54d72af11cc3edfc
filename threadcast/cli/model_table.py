"""What `train` and `compare` share: the models asked for, how they are judged, and the table of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from threadcast.cli.output import Output, table
from threadcast.core.errors import ModelError

if TYPE_CHECKING:
    from rich.table import Table

    from threadcast.core import Measurement
    from threadcast.models.base import PerformanceModel
    from threadcast.models.evaluation import Evaluation, Row
    from threadcast.models.splits import Split

SPLITS = ("auto", "new_network", "new_shape", "new_kind")


def models_asked_for(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names given, or all there are; a usage error for an unknown one."""
    from threadcast.models import registry_of_kinds

    for name in names:
        if name not in registry_of_kinds.names():
            raise click.BadParameter(f"no model is called {name!r}; known: {', '.join(registry_of_kinds.names())}")
    return tuple(dict.fromkeys(names)) or registry_of_kinds.names()


def make_models(
    names: Sequence[str], samples: Sequence[int], measurements: Sequence[Measurement]
) -> list[tuple[str, PerformanceModel]]:
    """The models of these names, the regressors once for each number of samples (none: the suggested one)."""
    from threadcast.models import registry_of_kinds
    from threadcast.models.measured import group
    from threadcast.models.sampling import suggested_samples

    if not samples:
        fewest: dict[str, int] = {}
        for entry in group(measurements):
            fingerprint = entry.machine.fingerprint
            fewest[fingerprint] = max(fewest.get(fingerprint, 0), len(entry.by_case))
        samples = [suggested_samples(min(fewest.values(), default=1))]
    made = []
    for name in names:
        if name in registry_of_kinds.REGRESSORS:
            made += [(name, registry_of_kinds.create(name, samples=count)) for count in samples]
        else:
            made.append((name, registry_of_kinds.create(name)))
    return made


def choose_split(
    wanted: str, measurements: Sequence[Measurement], networks_of: Mapping[str, Collection[str]]
) -> tuple[Split, str]:
    """The split of this name; for "auto" new networks where at least two can be left out, else new shapes."""
    from threadcast.models import splits
    from threadcast.models.measured import group

    by_network = splits.new_network(networks_of)
    if wanted == "auto":
        try:
            wanted = "new_network" if len(by_network(group(measurements))) > 1 else "new_shape"
        except ModelError:
            wanted = "new_shape"
    made = {"new_network": by_network, "new_shape": splits.new_shape(), "new_kind": splits.new_kind}
    return made[wanted], wanted


def judge(
    output: Output,
    measurements: Sequence[Measurement],
    models: Sequence[tuple[str, PerformanceModel]],
    split: tuple[Split, str],
    *,
    jobs: int | None,
) -> Evaluation:
    """Judge the models, with progress, and warn of ops that were left out and of models that failed."""
    from threadcast.core.topology import usable_cores
    from threadcast.models.evaluation import evaluate

    with output.progress("fitting and judging models") as bar:
        evaluation = evaluate(
            measurements, models, split=split[0], split_name=split[1], jobs=jobs or usable_cores().cores,
            progress=lambda done, total: bar.update(done, total=total),
        )  # fmt: skip
    for key, reason in evaluation.left_out.items():
        output.warn(f"{key} was left out: {reason}")
    for row in evaluation.rows:
        if row.problem:
            output.warn(f"{row.model} could not be judged by {row.unusable} ops: {row.problem}")
    return evaluation


def shown(rows: Sequence[Row], *, title: str) -> Table:
    """The rows for people, narrow enough for 80 characters; `Row.to_json` has more.

    "-" under acc says that every case was sampled, so that none was left to forecast. Where ops were lost to a model,
    being unusable for it, their number takes the place of the microseconds.
    """
    lost = any(row.unusable for row in rows)
    columns = ["model", "n", "acc %", "R2", "in 90%", "regret %", "fit_s", "lost" if lost else "us"]
    cells = [
        [
            row.model, _whole(row.samples), percent(row.accuracy), row.r2, percent(row.coverage_90),
            percent(row.regret_mean), row.fit_s, row.unusable if lost else row.predict_us,
        ]
        for row in rows
    ]  # fmt: skip
    return table(columns, cells, title=f"{title}, {max(row.ops for row in rows)} ops")


def percent(share: float | None) -> float | None:
    """The share in percent."""
    return None if share is None else 100 * share


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value
