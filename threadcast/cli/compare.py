"""`threadcast compare`: every model on the same measurements."""

from __future__ import annotations

from pathlib import Path

import click

from threadcast.cli.model_table import SPLITS, choose_split, judge, make_models, models_asked_for, shown
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.core.settings import Settings


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--model", "names", multiple=True, callback=models_asked_for, help="Kind of model; may be repeated [default: all]."
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    multiple=True,
    help="Samples of the regressors; may be repeated [default: 4, or a quarter of the cases].",
)
@click.option(
    "--split", type=click.Choice(SPLITS), default="auto", show_default=True, help="What models are judged by."
)
@click.option("--by-fold", is_flag=True, help="Also show each part that was left out.")
@setting("train.jobs", "--jobs")
@setting("store", "--store")
@common
def command(
    output: Output, settings: Settings, files: tuple[Path, ...], names: tuple[str, ...], samples: tuple[int, ...],
    split: str, by_fold: bool,
) -> None:  # fmt: skip
    """Compare models on the measurements of long-form FILEs, or of the store, by ops that they have not learned from.

    A model sees of each op only the cases that it asks for, and is not scored on those. accuracy is 1 - mean(|forecast
    - measured| / measured); regret is how much longer than the best case the chosen one takes; "in 90 %" is the
    share of times within the 90 % interval; "lost" counts ops that lack a case that the model asks for.
    """
    if files:
        from threadcast.store.long_form import read_long_form

        measurements = [measurement for file in files for measurement in read_long_form(file)]
        networks_of: dict[str, set[str]] = {}
    else:
        from threadcast.store import Store

        with Store.open(settings["store"], create=False) as store:
            measurements, networks_of = store.measurements(), store.networks_of()
    made = make_models(names, samples, measurements)
    chosen = choose_split(split, measurements, networks_of)
    evaluation = judge(output, measurements, made, chosen, jobs=settings["train.jobs"])
    document = {
        "split": chosen[1], "rows": [row.to_json() for row in evaluation.rows],
        "by_fold": [row.to_json() for row in evaluation.by_fold], "left_out": dict(evaluation.left_out),
    }  # fmt: skip
    tables = [shown(evaluation.rows, title=f"judged by {chosen[1]}")]
    if by_fold:
        tables += [
            shown([row for row in evaluation.by_fold if row.fold == fold], title=f"judged by {fold}")
            for fold in dict.fromkeys(row.fold for row in evaluation.by_fold)
        ]
    output.result(document, *tables)
