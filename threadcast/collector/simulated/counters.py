"""Hardware counts of an op on the simulated Xeon Phi, by the names that real counters have.

They are first-order estimates from the op's arithmetic, traffic and time. With them models that use counters get the
inputs that the paper's models had, with comparable errors. They are simulated, and labelled so.
"""

from __future__ import annotations

from threadcast.collector.simulated.constants import CLOCK_HZ, L2_BYTES
from threadcast.collector.simulated.demand import LANES, demand
from threadcast.core import Affinity, Case, Op

LINE_BYTES = 64
FLOPS_PER_INSTRUCTION = 2 * LANES
INSTRUCTIONS_PER_CYCLE_WAITING = 0.5
"""Assumed: a thread that spins at a barrier issues a load, a compare, a branch and a pause."""
INSTRUCTIONS_PER_BRANCH = 12
"""Assumed for unrolled vector loops."""


def counters(op: Op, case: Case, seconds: float, *, active_threads: int) -> dict[str, float]:
    """Counts of one run of `op` that took `seconds`, of all its threads together, in user mode, by counter name."""
    needs = demand(op)
    cycles = active_threads * seconds * CLOCK_HZ
    loads = max(needs.bytes / LINE_BYTES, needs.flops / FLOPS_PER_INSTRUCTION)  # one operand from memory each
    useful = 2 * loads + needs.flops / FLOPS_PER_INSTRUCTION / needs.fill
    waiting = max(0.0, cycles - useful) * INSTRUCTIONS_PER_CYCLE_WAITING
    tiles = active_threads if case.affinity is Affinity.SPREAD else (active_threads + 1) // 2
    copies = tiles * min(needs.shared_bytes, L2_BYTES)
    misses = (needs.bytes + copies) / LINE_BYTES
    # Each line that reaches the L2 is asked for once by each core of its tile, and again when the L1 lost it.
    references = misses * (1 if case.affinity is Affinity.SPREAD else 1.5) + loads / LANES
    return {
        "cycles": cycles,
        "instructions": useful + waiting,
        "branches": (useful + waiting) / INSTRUCTIONS_PER_BRANCH,
        "cache_references": references,
        "cache_misses": misses,
        "l1d_loads": loads,
        "l1d_load_misses": min(loads, references),
    }
