"""A campaign over the machines of a Dask cluster: parts go out, measurements come back and are stored at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

from distributed import Future, get_worker

import threadcast
from threadcast.collector.proposers import Proposer
from threadcast.core import Machine, Op
from threadcast.core.errors import MeasurementError
from threadcast.core.measurement_documents import measurement_of
from threadcast.fleet.measuring import Description, Manner, describe, measure_part
from threadcast.fleet.parts import Part, Parts
from threadcast.fleet.schedulers import CONNECT_S, client_of, close

if TYPE_CHECKING:
    from threadcast.store import Store

POLL_S = 0.2
"""Seconds between two looks at the cluster. A part takes some ten seconds."""

ANSWER_S = 60.0
"""A worker that has not said what it is, or has not begun its part, for so many seconds does other work."""

GO_ON = "what was measured is stored, and the same command goes on from here"


@dataclass(slots=True)
class MachineReport:
    """What one machine of the fleet did: cases measured and reused; why it was not used, else empty."""

    host: str
    fingerprint: str = ""
    parts: int = 0
    measured: int = 0
    reused: int = 0
    left_out: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class FleetProgress:
    """How far a campaign over a fleet is: parts, cases measured, and machines at work."""

    done: int
    total: int
    measured: int
    machines: int


@dataclass(slots=True)
class FleetReport:
    """The outcome: machines by the address of their worker, failed ops by machine kind and op key, unfinished parts."""

    machines: dict[str, MachineReport] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    unfinished: list[Part] = field(default_factory=list)

    @property
    def measured(self) -> int:
        """Cases that were measured, on all machines."""
        return sum(machine.measured for machine in self.machines.values())

    @property
    def reused(self) -> int:
        """Cases that were in the store already, on all machines."""
        return sum(machine.reused for machine in self.machines.values())


class FleetCampaign:
    """Measures ops on every machine of a Dask cluster, and stores what they measure.

    `ops` are the distinct ops and how often each runs. Machines of one kind (equal fingerprints) share the ops, those
    of different kinds measure all of them. A machine that is lost costs the measurement it was making; its part goes to
    another one of its kind. Machines may come while the campaign runs. `proposer` makes the model that decides what is
    measured of a part's ops. Of workers that would measure on the same CPUs, one is used, unless `allow_shared`. One
    of several threads is left out: what these do at once, such as another campaign, is CPU time of the same process,
    which does not count as other load. One that does other work for more than `ANSWER_S` seconds is not waited for, and
    taken again once it answers.

    Only this process writes to the store; workers need no access to it.
    """

    def __init__(
        self,
        address: str,
        ops: Mapping[Op, int],
        store: Store,
        manner: Manner,
        proposer: Callable[[tuple[Op, ...]], Proposer],
        *,
        wait_s: float = 60.0,
        allow_shared: bool = False,
        on_progress: Callable[[FleetProgress], None] = lambda progress: None,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._store, self._manner, self._proposer = store, manner, proposer
        self._ops = {op.key: op for op in ops}
        self._wait_s, self._allow_shared = wait_s, allow_shared
        self._on_progress, self._on_event = on_progress, on_event
        self._parts = Parts(ops)
        self._described: dict[str, Description] = {}
        self._asked: dict[str, _Asked] = {}
        self._measuring: dict[str, _Running] = {}
        self._runs: list[_Running] = []
        self._told: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        self._topic = f"threadcast-{uuid4().hex}"
        self.report = FleetReport()
        self._address, self._client = address, client_of(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        close(self._client)

    def run(self) -> FleetReport:
        """Measure until every kind of machine has measured every op; returns the report, which grows meanwhile.

        Ends early, with the rest in `unfinished`, where for `wait_s` seconds no machine is there that could go on.
        MeasurementError where none comes at all. What was measured is stored, whatever ends this.
        """
        self._client.subscribe_topic(self._topic, lambda event: self._told.put(event[1]))
        try:
            self._run()
        except (OSError, CancelledError) as error:  # of Dask: its scheduler ended or cannot be reached any more
            raise MeasurementError(f"the Dask scheduler at {self._address} is lost ({error}); {GO_ON}") from error
        finally:
            self._store_told()
            self._cancel()
        self.report.unfinished = [*self._parts.given_up, *self._parts.waiting()]
        return self.report

    def _run(self) -> None:
        active_s = time.monotonic()
        while not self._parts.finished or self._expects_answers():
            here = self._client.nthreads()
            self._lose({*self._described, *self._asked} - set(here))
            self._ask_who(here)
            self._begin()
            self._store_told()
            self._end()
            self._show()
            if self._parts.running or self._expects_answers():
                active_s = time.monotonic()
            elif time.monotonic() - active_s > self._wait_s:
                break
            time.sleep(POLL_S)
        for address in self._asked:
            self._leave_out(address, address, _does_other_work(address))
        if not self._parts.kinds:
            reasons = sorted({machine.left_out for machine in self.report.machines.values() if machine.left_out})
            raise MeasurementError(
                f"no machine came within {self._wait_s:g} s that can measure" + "".join(f"; {why}" for why in reasons)
            )

    def _expects_answers(self) -> bool:
        return any(time.monotonic() - asked.at_s < ANSWER_S for asked in self._asked.values())

    def _ask_who(self, here: Mapping[str, int]) -> None:
        """Ask machines that have come what they are, and take those that have answered; `here` has their threads."""
        for address in sorted(set(here) - set(self._asked) - set(self._described) - set(self.report.machines)):
            if here[address] == 1:
                self._ask(address)
            else:
                why = f"{address} has {here[address]} threads, which may do other work meanwhile; give it --nthreads 1"
                self._leave_out(address, address, why)
        for address, asked in list(self._asked.items()):
            if asked.future.done():
                self._take(address, asked.future)

    def _ask(self, address: str) -> None:
        self._asked[address] = _Asked(self._submit(address, describe, self._manner.cores), time.monotonic())

    def _take(self, address: str, future: Future) -> None:
        try:
            found: Description = future.result(timeout=CONNECT_S)
        except Exception as error:  # noqa: BLE001 - whatever the worker raised, one machine must not end the campaign
            if isinstance(error, TimeoutError) and future.status != "error":
                return  # its worker ended before the answer was fetched, and is about to be missed
            del self._asked[address]
            self._leave_out(address, address, f"{address} cannot measure: {type(error).__name__}: {error}")
            return
        del self._asked[address]
        if found.version != threadcast.__version__:
            why = f"{address} has threadcast {found.version}, this is {threadcast.__version__}"
            self._leave_out(address, found.host, why)
            return
        twin = next((other for other, known in self._described.items() if known.shares_cpus_with(found)), None)
        if twin is not None and not self._allow_shared:
            self._leave_out(address, found.host, f"{address} has the same CPUs as {twin}, which measures there")
            return
        self._described[address] = found
        report = self.report.machines.setdefault(address, MachineReport(found.host, found.machine.fingerprint))
        report.left_out = ""
        self._parts.come(address, found.machine.fingerprint)
        self._on_event(f"{found.host} ({address}) measures as {found.machine.fingerprint}")

    def _leave_out(self, address: str, host: str, why: str) -> None:
        self.report.machines.setdefault(address, MachineReport(host)).left_out = why
        self._on_event(f"left out: {why}")

    def _lose(self, gone: set[str]) -> None:
        for address in gone:
            self._asked.pop(address, None)
            self._described.pop(address, None)
            if running := self._measuring.pop(address, None):
                running.future.cancel(force=True)
            part = self._parts.gone(address)
            if (lost := self.report.machines.pop(address, None)) is not None:
                lost.lost = True
                self.report.machines[f"{address} (lost {len(self.report.machines)})"] = lost  # it may come back
            what = "" if part is None else f"; {len(part.ops)} ops go to another machine of its kind"
            self._on_event(f"{address} is lost{what}")
            if part in self._parts.given_up:
                self._fail(part, "machines were lost over this part again and again")

    def _begin(self) -> None:
        for address, part in self._parts.next():
            self._store_told()  # what a lost machine has measured of it
            machine = self._described[address].machine
            keys = [op.key for op in part.ops]
            known = self._store.measurements(machine=part.kind, keys=keys)
            changes = self._store.changes(part.kind)
            proposer = self._proposer(part.ops)
            future = self._submit(
                address, measure_on_worker, part, known, changes, proposer, self._manner, self._topic, len(self._runs)
            )
            self._measuring[address] = _Running(part, machine, future, self.report.machines[address])
            self._runs.append(self._measuring[address])

    def _end(self) -> None:
        for address, running in list(self._measuring.items()):
            if running.ended is not None:
                del self._measuring[address]
                self._parts.ended(address)
                running.report.parts += 1
                running.report.reused += running.ended["reused"]
                self.report.failed.setdefault(running.part.kind, {}).update(running.ended["failed"])
            elif running.future.status == "error":
                del self._measuring[address]
                error = running.future.exception()
                self._refuse(address, f"{type(error).__name__}: {error}", by_part=True)
            elif running.future.status == "cancelled":  # by Dask, which has lost its connection for a while
                raise CancelledError("it has forgotten what it was asked")
            elif not running.begun and time.monotonic() - running.asked_s > ANSWER_S:
                del self._measuring[address]
                running.future.cancel(force=True)
                self._refuse(address, _does_other_work(address), by_part=False)
                self._ask(address)  # it gets parts again once it answers

    def _refuse(self, address: str, why: str, *, by_part: bool) -> None:
        """A machine that raises where ops alone may fail gets no more parts."""
        part = self._parts.gone(address, by_part=by_part)
        self._described.pop(address)
        self.report.machines[address].left_out = why
        self._on_event(f"{address} gets no more parts: {why}")
        if part is not None and part in self._parts.given_up:
            self._fail(part, why)

    def _fail(self, part: Part, why: str) -> None:
        self.report.failed.setdefault(part.kind, {}).update({op.key: why for op in part.ops})

    def _store_told(self) -> None:
        """Store what machines have told since, lost ones too."""
        while True:
            try:
                told = self._told.get_nowait()
            except Empty:
                break
            self._runs[told["run"]].take(json.loads(told["what"]))
        for running in self._runs:
            self._store_of(running)

    def _store_of(self, running: _Running) -> None:
        if running.new:
            of_ops = [measurement_of(document, self._ops[document["op"]], running.machine) for document in running.new]
            self._store.add(of_ops)
            running.report.measured += len(of_ops)
            running.new.clear()

    def _submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> Future:
        """Run a function on this worker and no other; never again by itself where the worker is lost."""
        return self._client.submit(
            function, *arguments, workers=[address], allow_other_workers=False, pure=False, retries=0,
            key=f"{self._topic}-{uuid4().hex}",
        )  # fmt: skip

    def _cancel(self) -> None:
        """What still runs on a worker ends with its part, and is not stored."""
        futures = [asked.future for asked in self._asked.values()]
        futures += [running.future for running in self._measuring.values()]
        if self._client.status == "running":
            with suppress(OSError, CancelledError):
                self._client.cancel(futures, force=True)
                self._client.unsubscribe_topic(self._topic)

    def _show(self) -> None:
        done, total = self._parts.count()
        self._on_progress(FleetProgress(done, total, self.report.measured, len(self._parts.running)))


class _Asked(NamedTuple):
    """A worker's answer to what it is, and when it was asked (`time.monotonic`)."""

    future: Future
    at_s: float


@dataclass(slots=True)
class _Running:
    """A part that a worker measures; `new` are measurements that are not stored yet, `ended` is how it ended.

    The worker tells all of it by events. Its task returns nothing: waiting for the result of a worker that was killed
    after its task had ended would have no end.
    """

    part: Part
    machine: Machine
    future: Future
    report: MachineReport
    new: list[Mapping[str, Any]] = field(default_factory=list)
    ended: Mapping[str, Any] | None = None
    begun: bool = False
    asked_s: float = field(default_factory=time.monotonic)
    _taken: set[int] = field(default_factory=set)

    def take(self, told: Mapping[str, Any]) -> None:
        """Take that it has begun, a measurement of the part, by its number, or its end; one that was taken already is
        left."""
        self.begun = True
        if "ended" in told:
            self.ended = told["ended"]
        elif "number" in told and told["number"] not in self._taken:
            self._taken.add(told["number"])
            self.new.append(told["measurement"])


def measure_on_worker(
    part: Part, known: Any, changes: Any, proposer: Proposer, manner: Manner, topic: str, run: int
) -> None:
    """`measure_part` in a Dask worker, which tells the campaign of each measurement and the end by events of a topic.

    Events of one worker arrive in their order, so the end after all measurements.
    """
    worker = get_worker()

    def tell(**what: Any) -> None:
        worker.log_event(topic, {"run": run, "what": json.dumps(what)})

    def measured(number: int, document: Mapping[str, Any]) -> None:
        tell(number=number, measurement=document)

    tell(begun=True)
    report = measure_part(part, known, changes, proposer, manner, measured)
    tell(ended={"reused": report.reused, "failed": dict(report.failed)})


def _does_other_work(address: str) -> str:
    return f"{address} has not answered for {ANSWER_S:g} s: its worker does other work"
