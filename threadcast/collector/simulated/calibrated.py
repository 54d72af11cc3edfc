"""The constants that `benchmarks/calibrate_xeon_phi.py --write` found; written by it, not by hand."""

from threadcast.collector.simulated.constants import Constants
from threadcast.collector.simulated.demand import Pass

CALIBRATED = Constants(
    flops_per_s={Pass.FORWARD: 35070000000.0, Pass.INPUT: 36650000000.0, Pass.WEIGHT: 59430000000.0},
    reorder_s_per_byte={Pass.FORWARD: 4.528e-10, Pass.INPUT: 1.06e-09, Pass.WEIGHT: 1.856e-09},
    share_bytes_per_s=9758000000.0,
    contention=0.2101,
    smt_throughput=1.03,
)
