"""`threadcast compare`: every model on the same measurements."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from threadcast.cli.model_table import (
    SPLITS,
    choose_split,
    compared_samples,
    judge,
    make_models,
    models_asked_for,
    said,
    shown,
)
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.cli.table_reading import Reading, table_options
from threadcast.core.settings import Settings


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--model", "names", multiple=True, callback=models_asked_for, help="Kind of model; may be repeated [default: all]."
)
@click.option(
    "--samples",
    type=click.IntRange(0),
    multiple=True,
    help="Samples of the models that take a number of them; may be repeated "
    "[default: 0, 1, 3, 4, 8 and 16, as far as there are cases].",
)
@click.option(
    "--split",
    type=click.Choice(SPLITS),
    default="auto",
    show_default=True,
    help="What models are judged by: each of "
    "these is left out once, kinds several together where there are more than 10.",
)
@click.option(
    "--known", type=click.IntRange(0), default=0, help="Ops of a left-out kind or machine to learn from nevertheless."
)
@table_options
@click.option("--by-fold", is_flag=True, help="Also show each part that was left out.")
@setting("train.steps", "--steps")
@setting("train.jobs", "--jobs")
@setting("store", "--store")
@common
def command(
    output: Output, settings: Settings, files: tuple[Path, ...], names: tuple[str, ...], samples: tuple[int, ...],
    split: str, known: int, reading: Reading, by_fold: bool,
) -> None:  # fmt: skip
    """Compare models on the measurements of FILEs, or of the store, by ops that they have not learned from.

    A model gets only the cases of each op that it asks for (n), and is not scored on those. acc is 1 -
    mean(|forecast - measured| / measured), marked "=" where it may equal the best; "<10%" is the share of forecasts off
    by at most 10 %, "in 90%" the share of times within the 90 % interval; regret is by how much the chosen case takes
    longer than the best one, on average, with its standard error. cost is by how much --steps runs of all ops at the
    chosen cases, and the measuring of the model's samples, take longer than these runs at the best cases: by it rows
    are sorted, and `train` ranks models. "call" is the time of one forecast; "lost" counts ops that lack a case that
    the model asks for. Wide terminals also show the regret of the worst twentieth ("p95"), and the speed-up over all
    threads, the median over ops with its 95 % interval, without and with the time of a forecast in each run. The last
    line says which model is best, by how much, and whether that is more than chance.

    A FILE is one of those that `db import` takes. Of files with the same content, under whatever names, one counts.
    """
    if not files and reading != Reading():
        raise click.UsageError("--machine, --op and --column are for FILEs; the store knows its own")
    from threadcast.models.judgement import ranked

    if files:
        measurements = [found for file in _distinct(files, output) for found in reading.measurements(file, output)]
        networks_of: dict[str, set[str]] = {}
    else:
        from threadcast.store import Store

        with Store.open(settings["store"], create=False) as store:
            measurements, networks_of = store.measurements(), store.networks_of()
    candidates = make_models(names, samples or compared_samples(measurements), measurements)
    chosen = choose_split(split, measurements, networks_of, known=known)
    jobs, steps = settings["train.jobs"], settings["train.steps"]
    evaluation = judge(output, measurements, candidates, chosen, jobs=jobs, steps=steps)
    document = {
        "split": chosen[1], "best": None if evaluation.lead is None else evaluation.lead.to_json(),
        "rows": [row.to_json() for row in ranked(evaluation.rows)],
        "by_fold": [row.to_json() for row in evaluation.by_fold], "left_out": dict(evaluation.left_out),
        "odd_units": evaluation.odd_units,
    }  # fmt: skip
    tables: list[RenderableType] = [shown(evaluation.rows, title=f"judged by {chosen[1]}"), Text(said(evaluation.lead))]
    if by_fold:
        tables += [
            shown([row for row in evaluation.by_fold if row.fold == fold], title=f"judged by {fold}")
            for fold in dict.fromkeys(row.fold for row in evaluation.by_fold)
        ]
    output.result(document, *tables)


def _distinct(files: Iterable[Path], output: Output) -> list[Path]:
    """The files without those whose content an earlier one has; the user is told of these."""
    from threadcast.store.table_files import digest_of

    kept: dict[str, Path] = {}
    for file in files:
        digest = digest_of(file)
        if kept.setdefault(digest, file) is not file:
            output.note(f"{file} was read before, as {kept[digest]}; nothing of it counts again")
    return list(kept.values())
