"""Fits the simulated Xeon Phi to Tables II and III of Liu et al. 2018 and shows how well it fits.

    python benchmarks/calibrate_xeon_phi.py             compare with the constants in use
    python benchmarks/calibrate_xeon_phi.py --write     put the fitted ones in their place
    python benchmarks/calibrate_xeon_phi.py --filters   what other filters than the assumed ones would give

The two tables are the only ones it reads.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from xeon_phi_tables import Filter, calibrate, fit, read_table, table_op

from threadcast.collector.simulated import calibrated
from threadcast.collector.simulated.constants import CORES, PEAK_FLOPS_PER_S, Constants
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import Case

PAPERS = Path(__file__).parent.parent / "data" / "papers"
TABLE_II, TABLE_III = PAPERS / "knl_best_threads_by_input.csv", PAPERS / "knl_corun_pair.csv"

SOURCE = '''"""The constants that `benchmarks/calibrate_xeon_phi.py --write` found; written by it, not by hand."""

from threadcast.collector.simulated.constants import Constants
from threadcast.collector.simulated.demand import Pass

CALIBRATED = Constants(
{}
)
'''

SHAPES = ("32x8x8x384", "32x17x17x384", "32x8x8x2048")
FILTERS: dict[str, dict[str, Filter]] = {
    "1x3, 384 everywhere (assumed)": {},
    "3x1, 384 everywhere": dict.fromkeys(SHAPES, Filter(3, 1, 384)),
    "1x1, 384 everywhere": dict.fromkeys(SHAPES, Filter(1, 1, 384)),
    "3x3, 384 everywhere": dict.fromkeys(SHAPES, Filter(3, 3, 384)),
    "1x3, 192 everywhere": dict.fromkeys(SHAPES, Filter(1, 3, 192)),
    "Mixed_7c's 1x1, 384 at 8x8x2048": {"32x8x8x2048": Filter(1, 1, 384)},
    "1x1, 448 at 8x8x2048; 1x1, 192 at 17x17x384": {
        "32x8x8x2048": Filter(1, 1, 448),
        "32x17x17x384": Filter(1, 1, 192),
    },
}


@click.command()
@click.option("--write", is_flag=True, help="Write the fitted constants into calibrated.py.")
@click.option("--filters", is_flag=True, help="Fit under other assumptions about the filters as well.")
def main(write: bool, filters: bool) -> None:
    """Fit the simulated Xeon Phi and print the fit beside the tables."""
    console = Console()
    found = calibrate(TABLE_II, TABLE_III)
    if write:
        Path(calibrated.__file__).write_text(as_source(found))
    console.print(constants_table(found))
    console.print(fit_table(found))
    console.print(co_run_table(found))
    if filters:
        console.print(filter_table())


def as_source(constants: Constants) -> str:
    """The text of calibrated.py, constants to four significant digits."""
    lines = []
    for name in ("flops_per_s", "reorder_s_per_byte"):
        values = getattr(constants, name).items()
        lines.append(f"    {name}={{{', '.join(f'Pass.{key.name}: {short(value)}' for key, value in values)}}},")
    single = ("share_bytes_per_s", "contention", "smt_throughput")
    lines += [f"    {name}={short(getattr(constants, name))}," for name in single]
    return SOURCE.format("\n".join(lines))


def short(value: float) -> str:
    return repr(float(f"{value:.4g}"))


def constants_table(found: Constants) -> Table:
    used = calibrated.CALIBRATED
    table = Table("constant", "fitted", "in use", "unit", title="Simulated Xeon Phi 7250: constants")
    for kernel in found.flops_per_s:
        share = found.flops_per_s[kernel] / PEAK_FLOPS_PER_S
        rates = (found.flops_per_s[kernel] / 1e9, used.flops_per_s[kernel] / 1e9)
        table.add_row(f"rate, {kernel}", *(f"{r:.4g}" for r in rates), f"Gflop/s a core ({share:.0%} of peak)")
        reorder = (found.reorder_s_per_byte[kernel] * 1e9, used.reorder_s_per_byte[kernel] * 1e9)
        table.add_row(f"filter reorder, {kernel}", *(f"{r:.4g}" for r in reorder), "ns a byte")
    table.add_row("sharing", f"{found.share_bytes_per_s / 1e9:.4g}", f"{used.share_bytes_per_s / 1e9:.4g}", "GB/s")
    table.add_row("contention", f"{found.contention:.4g}", f"{used.contention:.4g}", "beside 34 busy cores")
    table.add_row("hyper-threading", f"{found.smt_throughput:.4g}", f"{used.smt_throughput:.4g}", "work of a core")
    return table


def fit_table(found: Constants) -> Table:
    table = Table("op", "input", "ms", "best threads", "loss at 68", title="Table II: simulated / paper")
    model = XeonPhi(found)
    for row in read_table(TABLE_II):
        curve = model.curve(row.op, np.arange(1, CORES + 1))
        at_best = curve[row.best_threads - 1]
        table.add_row(
            row.name, row.shape,
            f"{at_best * 1e3:.1f} / {row.seconds * 1e3:.1f}",
            f"{int(curve.argmin()) + 1} / {row.best_threads}",
            f"{curve[-1] / at_best - 1:.1%} / {row.gain_over_68:.1%}",
        )  # fmt: skip
    return table


def co_run_table(found: Constants) -> Table:
    model = XeonPhi(found)
    weight, image = (table_op(n, "32x8x8x2048") for n in ("Conv2DBackpropFilter", "Conv2DBackpropInput"))
    table = Table("what", "simulated", "paper", title="Held out: what 34 threads cost the pair of Table III (its text)")
    for name, op, paper in (("Conv2DBackpropFilter", weight, 0.25), ("Conv2DBackpropInput", image, 0.17)):
        loss = model.seconds(op, Case(CORES // 2)) / model.seconds(op, Case(CORES)) - 1
        table.add_row(name, f"{loss:.0%}", f"{paper:.0%}")
    return table


def filter_table() -> Table:
    table = Table("filters", "error", "rates, Gflop/s a core", title="Half the squared error by assumption on filters")
    for name, filters in FILTERS.items():
        found, error = fit(read_table(TABLE_II, filters=filters))
        rates = ", ".join(f"{rate / 1e9:.0f}" for rate in found.flops_per_s.values())
        table.add_row(name, f"{error:.0f}", rates)
    return table


if __name__ == "__main__":
    main()
