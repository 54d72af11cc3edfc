"""Runs a policy against predicted times: the same decisions as on real cores, in simulated seconds.

The life of an op: it becomes ready when its last predecessor finishes; the policy launches it; it finishes when its
lone seconds are used up, at a pace that interference changes whenever something starts or finishes.
"""

from __future__ import annotations

import heapq
import math

from threadcast.core import CurveTable, Placement, Trace
from threadcast.core.errors import IllegalLaunch, InvalidInput, PlanError
from threadcast.scheduler.interference.core_sharing import CoreSharing, Interference
from threadcast.scheduler.problem import Launch, Policy, Running, State
from threadcast.scheduler.problem.hardware_threads import may_share_cores
from threadcast.scheduler.problem.times import Times
from threadcast.scheduler.simulation.occupancy import Occupancy
from threadcast.scheduler.simulation.ready_set import ReadyQueue

HISTORY = 8
"""Number of last launches that the message about an illegal launch lists."""


def simulate(
    policy: Policy, *, true_curves: CurveTable | None = None, interference: Interference | None = None
) -> Trace:
    """Return the trace of `policy` running its problem: every op's cores, start and finish in simulated seconds.

    The policy decides by its problem's curves; ops take the times of `true_curves` (same rows, same machine) if given.
    Without `interference`, ops slow each other down only on shared cores (`CoreSharing`). Equal arguments give equal
    traces. IllegalLaunch, with the last launches, where the policy breaks its contract.
    """
    run = Simulation(policy, true_curves=true_curves, interference=interference)
    run.run()
    return Trace(len(policy.problem.machine), policy.name, run.placements(), simulated=True)


def makespan_s(policy: Policy, *, interference: Interference | None = None, give_up_s: float = math.inf) -> float:
    """Return the makespan of `simulate` in seconds; infinity if it reaches `give_up_s`, without simulating the rest."""
    run = Simulation(policy, interference=interference)
    return run.now_s if run.run(give_up_s) else math.inf


class Simulation:
    """The simulation of one run of a policy; call `run` once."""

    def __init__(
        self, policy: Policy, *, true_curves: CurveTable | None = None, interference: Interference | None = None
    ) -> None:
        problem = policy.problem
        if true_curves is not None and len(true_curves) != len(problem.graph):
            raise PlanError(f"{len(true_curves)} true curves for {len(problem.graph)} ops: there must be one an op")
        self.now_s = 0.0
        self.policy = policy
        self.done = False
        """Whether every op has finished."""
        self._graph = problem.graph
        self._predicted = problem.times
        self._true = Times(true_curves, problem.machine, ids=problem.graph.ids) if true_curves else problem.times
        self._sharing = interference or CoreSharing(problem.machine)
        self._least_factor = (1 - 1e-9) / self._sharing.core_throughput
        self._always_shares = interference is not None
        self._crowded = 0  # running ops that may share a core
        self._slowed = False  # whether some factor is not 1
        self._occupancy = Occupancy(problem.machine)
        self._ready = ReadyQueue(policy.rank)
        n = len(problem.graph)
        self._finished = bytearray(n)
        self._waiting = [len(before) for before in problem.graph.predecessors]
        self._running: dict[int, Running] = {}
        self._launches: dict[int, Launch] = {}  # in order of start
        self._start_s = [0.0] * n
        self._finish_s = [math.inf] * n
        self._left_s = [0.0] * n  # lone seconds that were left at `_since_s`
        self._since_s = [0.0] * n
        self._factor = [1.0] * n
        self._finishes: list[tuple[float, int]] = []  # heap; entries that differ from `_finish_s` are void

    def run(self, give_up_s: float = math.inf) -> bool:
        """Simulate to the end and return True; return False as soon as the makespan is known to reach `give_up_s`."""
        for op, count in enumerate(self._waiting):
            if count == 0:
                self._ready.add(op)
        while True:
            if self._ready:
                for launch in self.policy.decide(self._state()):
                    self._launch(launch)
            if self._always_shares or self._crowded or self._slowed:
                self._rescale()
            if not self._running:
                break
            if not self._advance(give_up_s):
                return False
        if self._ready:
            raise self._illegal(f"launched nothing while {len(self._ready)} ops are ready and all cores are idle")
        self.done = True
        return True

    def placements(self) -> tuple[Placement, ...]:
        """Return where and when each op ran, in order of start."""
        ids = self._graph.ids
        return tuple(
            Placement(ids[op], at.cores, at.threads, self._start_s[op], self._finish_s[op], at.hardware_thread)
            for op, at in self._launches.items()
        )

    def _state(self) -> State:
        idle, running = self._occupancy.idle(), tuple(self._running.values())
        return State(self.now_s, self._ready, idle, running, self._finished)

    def _launch(self, launch: Launch) -> None:
        op, cores, threads = launch.op, launch.cores, launch.threads
        if op not in self._ready:
            raise self._illegal(f"launched {self._name(op)}, which is not ready")
        try:
            self._occupancy.take(launch)
            predicted_s = self._predicted.on(op, cores, threads)
            lone_s = predicted_s if self._true is self._predicted else self._true.on(op, cores, threads)
        except (IllegalLaunch, PlanError) as error:
            raise self._illegal(f"launched {self._name(op)} on cores {cores}: {error}") from error
        self._ready.remove(op)
        now = self.now_s
        self._launches[op] = launch
        self._running[op] = Running(op, cores, threads, now, now + predicted_s, launch.hardware_thread)
        self._start_s[op] = self._since_s[op] = now
        self._left_s[op] = lone_s
        self._finish_s[op] = now + lone_s
        heapq.heappush(self._finishes, (now + lone_s, op))
        self._crowded += may_share_cores(launch)

    def _rescale(self) -> None:
        """Ask how fast each op goes now, and move the finish of those whose pace has changed."""
        running = tuple(self._running.values())
        factors = self._sharing.slowdowns(running)
        if len(factors) != len(running):
            raise InvalidInput(f"the interference gave {len(factors)} slow-downs for {len(running)} running ops")
        self._slowed = False
        for at, factor in zip(running, factors):
            op, now = at.op, self.now_s
            self._slowed = self._slowed or factor != 1.0
            if factor == self._factor[op]:
                continue
            if not self._least_factor <= factor < math.inf:
                raise InvalidInput(
                    f"the interference gave slow-down {factor} for {self._name(op)}; "
                    f"its core_throughput allows {self._least_factor:.4g} or more"
                )
            left = max(0.0, self._left_s[op] - (now - self._since_s[op]) / self._factor[op])
            self._left_s[op], self._since_s[op], self._factor[op] = left, now, factor
            self._finish_s[op] = now + left * factor
            heapq.heappush(self._finishes, (self._finish_s[op], op))

    def _advance(self, give_up_s: float) -> bool:
        """Go to the next finish, finish all ops that end then, and make ready what waited for them."""
        heap, finish_s, finished, waiting = self._finishes, self._finish_s, self._finished, self._waiting
        while finished[heap[0][1]] or heap[0][0] != finish_s[heap[0][1]]:
            heapq.heappop(heap)
        self.now_s = heap[0][0]
        if self.now_s >= give_up_s:
            return False
        while heap and heap[0][0] <= self.now_s:
            at_s, op = heapq.heappop(heap)
            if finished[op] or at_s != finish_s[op]:
                continue
            finished[op] = 1
            del self._running[op]
            launch = self._launches[op]
            self._occupancy.release(launch)
            self._crowded -= may_share_cores(launch)
            for successor in self._graph.successors[op]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    self._ready.add(successor)
        return True

    def _name(self, op: int) -> str:
        return f"op {self._graph.ids[op]!r}" if 0 <= op < len(self._graph) else f"op number {op}"

    def _illegal(self, what: str) -> IllegalLaunch:
        last = [
            f"{self._start_s[op]:.9g} s {self._name(op)} on {at.threads} threads, cores {list(at.cores)}"
            for op, at in list(self._launches.items())[-HISTORY:]
        ]
        running = ", ".join(self._name(op) for op in self._running) or "nothing"
        history = "; ".join(last) or "none"
        return IllegalLaunch(
            f"policy {self.policy.name!r} at {self.now_s:.9g} s {what}. Running: {running}. Last launches: {history}"
        )
