"""A plan and a trace as a timeline that ui.perfetto.dev and chrome://tracing open (Chrome trace-event JSON)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from threadcast.core.errors import InvalidInput
from threadcast.core.graph import OpGraph
from threadcast.core.json_writing import write_json
from threadcast.core.op import Op
from threadcast.core.plan import Placement, Plan, Trace

Event = dict[str, Any]


def perfetto(plan: Plan | None = None, trace: Trace | None = None, *, graph: OpGraph | None = None) -> dict[str, Any]:
    """Return the trace-event document of a plan, a trace, or both; of both, the plan is a group above the trace.

    There is a track for every core that runs an op, and one more for its second hardware thread where that is
    used; an op is drawn on each of its cores. Ops that overlap on one core, as measured times may, get a further
    track. `graph` adds each op's kind, flops and bytes. InvalidInput when there is neither plan nor trace.
    """
    if plan is None and trace is None:
        raise InvalidInput("a timeline needs a plan or a trace")
    ops = dict(zip(graph.ids, graph.ops)) if graph else {}
    planned = plan.by_id() if plan else {}
    events: list[Event] = []
    if plan is not None:
        events += _group(1, f"predicted: {plan.policy}", plan, ops, {})
    if trace is not None:
        what = "simulated" if trace.simulated else "actual"
        events += _group(2, f"{what}: {trace.policy}", trace, ops, planned)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write(path: Path, *, plan: Plan | None = None, trace: Trace | None = None, graph: OpGraph | None = None) -> None:
    """Write `perfetto`'s document to `path`."""
    write_json(path, perfetto(plan, trace, graph=graph))


def _group(
    process: int, name: str, schedule: Plan | Trace, ops: dict[str, Op], planned: dict[str, Placement]
) -> Iterator[Event]:
    tracks: dict[tuple[int, int, int], float] = {}  # (core, hardware thread, lane) -> when its last op finishes
    placed = [(_track(tracks, core, op), op) for op in schedule.ops for core in op.cores]
    numbers = {track: i for i, track in enumerate(sorted(tracks), start=1)}  # 0 is the idle task to Perfetto
    yield _named("process_name", process, 0, name=name)
    yield _named("process_sort_index", process, 0, sort_index=process)
    for (core, thread, lane), number in numbers.items():
        beside = f", hardware thread {thread}" if thread else ""
        again = f", overlap {lane}" if lane else ""
        yield _named("thread_name", process, number, name=f"core {core}{beside}{again}")
        yield _named("thread_sort_index", process, number, sort_index=number)
    guarded = frozenset(schedule.guarded) if isinstance(schedule, Plan) else frozenset()
    for track, op in placed:
        start_ns, finish_ns = round(op.start_s * 1e9), round(op.finish_s * 1e9)
        # Microseconds. Perfetto cuts both to whole nanoseconds and drops events that then overlap: hence 1 ns less.
        times = {"ts": start_ns / 1e3, "dur": max(finish_ns - start_ns - 1, 0) / 1e3}
        known = ops.get(op.id)
        yield {
            "name": op.id, "cat": known.kind if known else "op", "ph": "X", "pid": process, "tid": numbers[track],
            **times, "args": _arguments(op, known, planned.get(op.id), op.id in guarded),
        }  # fmt: skip


def _track(tracks: dict[tuple[int, int, int], float], core: int, op: Placement) -> tuple[int, int, int]:
    """The first track of the core that is free when `op` starts; occupies it."""
    lane = 0
    while tracks.get((core, op.hardware_thread, lane), 0.0) > op.start_s:
        lane += 1
    tracks[core, op.hardware_thread, lane] = op.finish_s
    return core, op.hardware_thread, lane


def _arguments(op: Placement, known: Op | None, planned: Placement | None, guarded: bool) -> Event:
    arguments: Event = {"threads": op.threads, "cores": list(op.cores), "seconds": op.duration_s}
    if known:
        arguments |= {"kind": known.kind, "flops": known.flops, "bytes": known.bytes_moved}
    if planned:
        arguments["predicted_seconds"] = planned.duration_s
    if guarded:
        arguments["guarded"] = True
    return arguments


def _named(what: str, process: int, thread: int, **args: Any) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": args}
