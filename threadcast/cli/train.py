"""`threadcast train`: fit models to the store's measurements, judge them, register them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from threadcast.cli.model_table import SPLITS, choose_split, judge, make_models, models_asked_for, shown
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.cli.user import user
from threadcast.core.errors import ModelError
from threadcast.core.settings import Settings
from threadcast.store.holding import all_that_holds

if TYPE_CHECKING:
    from threadcast.core import Measurement
    from threadcast.models.base import PerformanceModel
    from threadcast.models.judgement import Row
    from threadcast.models.registry import ModelRegistry


@click.command()
@click.option(
    "--model", "names", multiple=True, callback=models_asked_for, help="Kind of model; may be repeated [default: all]."
)
@click.option(
    "--samples", type=click.IntRange(1), help="Samples of the regressors [default: 4, or a quarter of the cases]."
)
@click.option(
    "--split", type=click.Choice(SPLITS), default="auto", show_default=True, help="What models are judged by."
)
@click.option("--machine", help="Fingerprint; learn from this machine's measurements only.")
@click.option(
    "--calibrate", is_flag=True, help="Measure what this machine can do at most, for the roofline (about 5 s)."
)
@click.option(
    "--alias", default="champion", show_default=True, help="Alias for the one that costs least, measuring included."
)
@click.option("--no-alias", is_flag=True, help="Move no alias.")
@click.option(
    "--promote-if-better",
    is_flag=True,
    help="Retrain the alias's model, and move the alias only to a candidate that is better on ops held out.",
)
@click.option(
    "--backend",
    type=click.Choice(["loky", "dask"]),
    default="loky",
    show_default=True,
    help="Fit in processes of this machine, or on a Dask cluster.",
)
@click.option("--address", help="Where the Dask cluster's scheduler is: tcp://host:8786.")
@setting("train.steps", "--steps")
@setting("train.jobs", "--jobs")
@setting("store", "--store")
@setting("models", "--models")
@common
def command(
    output: Output, settings: Settings, names: tuple[str, ...], samples: int | None, split: str,
    machine: str | None, calibrate: bool, alias: str, no_alias: bool, promote_if_better: bool, backend: str,
    address: str | None,
) -> None:  # fmt: skip
    """Fit models to what holds now of the store's measurements and register each as a new version.

    Before that, each is compared on ops that it has not learned from. The alias goes to the one that costs least: the
    time of --steps runs of these ops at the chosen cases, and of measuring the samples that the model asks for. One
    that no op could judge is not registered. A registered joint_process forecasts ops of which nothing was measured
    with the shipped prior, as `plan`, `run` and `predict` do without a champion.

    With --promote-if-better nothing else is compared: a copy of the alias's model learns from four ops of five, and
    takes the alias where it is better on the others and not worse on the golden set. As long as there is no such alias,
    all kinds are trained as without this option, and the best gets it. Run it by a timer.
    """
    from threadcast.models import parallel
    from threadcast.models.aliases import check_alias
    from threadcast.models.judgement import ranking
    from threadcast.models.registry import ModelRegistry as Registry
    from threadcast.store import Store

    check_alias(alias)
    if calibrate and "roofline" not in names:
        raise click.UsageError("--calibrate is for the roofline; add --model roofline")
    if (backend == "dask") != (address is not None):
        raise click.UsageError("--backend dask and --address go together")
    given = click.get_current_context().get_parameter_source
    others = ("names", "samples", "split", "calibrate", "no_alias", "backend", "address")
    if promote_if_better and any(given(name) is ParameterSource.COMMANDLINE for name in others):
        raise click.UsageError("--promote-if-better retrains the alias's model as it is: leave out other choices")
    registry = Registry(settings["models"])
    with Store.open(settings["store"], create=False) as store:
        stored = store.measurements(machine=machine)
        measurements = all_that_holds(stored, store.changes)
        networks_of = store.networks_of()
        where = store.name
    if not measurements:
        of = f" of {machine}" if machine else ""
        raise ModelError(f"{where} has no measurements{of}; `threadcast profile NETWORK` makes some")
    if promote_if_better and registry.is_alias(alias):
        _promote(output, registry, alias, measurements, steps=settings["train.steps"])
        return
    candidates = make_models(names, [samples] if samples else [], measurements)
    if calibrate:
        candidates = [(name, _calibrated() if name == "roofline" else model) for name, model in candidates]
    chosen = choose_split(split, measurements, networks_of)
    origin = _origin(stored, networks_of)
    with parallel.cluster(address) if address else nullcontext():
        evaluation = judge(
            output, measurements, candidates, chosen, jobs=settings["train.jobs"], steps=settings["train.steps"]
        )
        if evaluation.odd_units:
            origin |= {"odd_units": list(evaluation.odd_units)}
        registered = [
            (registry.save(model, trained_on=origin, metrics={row.split: row.to_json()}), row)
            for (_, judged), row in zip(candidates, evaluation.rows)
            if _fit(output, model := judged.to_register(), measurements, row)
        ]
    if not registered:
        raise ModelError("no model could be fitted and judged; the warnings above say why")
    best = None if no_alias else registered[ranking([row for _, row in registered])[0]][0]
    if best:
        registry.set_alias(alias, best, by=user())
    document = {
        "models": [{"version": version, **row.to_json()} for version, row in registered],
        "alias": {alias: best} if best else None, "left_out": dict(evaluation.left_out),
        "odd_units": evaluation.odd_units,
    }  # fmt: skip
    said = f"{alias} is {best}" if best else f"{len(registered)} models registered, no alias moved"
    output.result(document, shown([row for _, row in registered], title=f"judged by {chosen[1]}"), said)


def _promote(
    output: Output, registry: ModelRegistry, alias: str, measurements: Sequence[Measurement], *, steps: int
) -> None:
    from threadcast.models.measured import group
    from threadcast.models.promotion import promote_if_better

    found = promote_if_better(registry, alias, group(measurements), steps=steps, by=user())
    rows = [found.verdict.champion_row, found.verdict.candidate_row]
    stays = "is" if found.now != found.before else "stays"
    output.result(
        {"alias": alias, **found.to_json()}, shown(rows, title="judged by ops held out"),
        f"{alias} {stays} {found.now}: {found.why}",
    )  # fmt: skip


def _calibrated() -> PerformanceModel:
    from threadcast.collector.calibration import calibrate
    from threadcast.core.topology import read_machine
    from threadcast.models import registry_of_kinds

    return registry_of_kinds.create("roofline", calibrations=[calibrate(read_machine())])


def _fit(output: Output, model: PerformanceModel, measurements: Sequence[Measurement], row: Row) -> bool:
    """Fit the model to all measurements and return True.

    False, with a warning, if that fails or no op could judge it.
    """
    if not row.ops:
        output.warn(f"{model.name} was not registered: no op could judge it")
        return False
    try:
        model.fit(measurements)
    except ModelError as error:
        output.warn(f"{model.name} was not registered: {error}")
        return False
    for note in model.notes:
        output.note(f"{model.name}: {note}")
    return True


def _origin(measurements: Sequence[Measurement], networks_of: dict[str, set[str]]) -> dict[str, Any]:
    keys = {m.op.key for m in measurements}
    return {
        "machines": sorted({m.machine.fingerprint for m in measurements}), "ops": len(keys),
        "measurements": len(measurements), "networks": sorted({n for key in keys for n in networks_of.get(key, ())}),
    }  # fmt: skip
