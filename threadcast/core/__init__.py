"""The vocabulary: ops, graphs, machines, measurements, curves, plans. Imports nothing else of threadcast."""

from threadcast.core.case import Affinity, Case
from threadcast.core.curve import Curve, Source
from threadcast.core.curve_table import CurveTable
from threadcast.core.graph import Edge, OpGraph
from threadcast.core.machine import Cache, Core, Machine
from threadcast.core.measurement import Measurement, Sample
from threadcast.core.op import Op
from threadcast.core.plan import Placement, Plan, Trace
from threadcast.core.tensor import TensorSpec
from threadcast.core.topology import UsableCores, read_machine, usable_cores

__all__ = [
    "Affinity",
    "Cache",
    "Case",
    "Core",
    "Curve",
    "CurveTable",
    "Edge",
    "Machine",
    "Measurement",
    "Op",
    "OpGraph",
    "Placement",
    "Plan",
    "Sample",
    "Source",
    "TensorSpec",
    "Trace",
    "UsableCores",
    "read_machine",
    "usable_cores",
]
