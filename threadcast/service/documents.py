"""Converts the documents in requests to objects of `core`; errors point to the wrong member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

from threadcast.core import Affinity, Case, Machine, Op, OpGraph
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import member
from threadcast.core.machine import MAX_CORES
from threadcast.service.problems import Problem, Where
from threadcast.service.settings import ServiceSettings
from threadcast.service.stored_documents import StoredDocuments
from threadcast.store import Store

_CASE_MEMBERS = frozenset({"threads", "affinity"})


@contextmanager
def reading(pointer: str) -> Iterator[None]:
    """Turn an InvalidInput or OverflowError of the block into a FormatError at `pointer`.

    A FormatError passes through.
    """
    try:
        yield
    except FormatError:
        raise
    except (InvalidInput, OverflowError) as error:
        raise FormatError(str(error), pointer=pointer) from error


def read_machine(value: Any, stored: StoredDocuments, *, pointer: str = "/machine", where: Where = "body") -> Machine:
    """Return the machine in a document, or the stored one with a fingerprint; for None the only machine in the store.

    FormatError for a wrong document; Problem for an unknown fingerprint, or None where the store has not one machine.
    """
    if isinstance(value, dict):
        cores = value.get("cores")
        if isinstance(cores, list) and len(cores) > MAX_CORES:
            raise FormatError(f"{len(cores)} cores are more than {MAX_CORES}", pointer=f"{pointer}/cores")
        return Machine.from_json(value, pointer=pointer)
    machines = stored.machines()
    named = ", ".join(list(machines)[:5]) or "none"
    if value is None:
        if len(machines) == 1:
            return next(iter(machines.values()))
        raise Problem(
            422, f"name the machine: the store knows {len(machines)} ({named}); a whole document will do, too",
            pointer=pointer, where=where,
        )  # fmt: skip
    if not isinstance(value, str):
        raise FormatError("a machine must be a fingerprint or a machine document", pointer=pointer)
    if value not in machines:
        raise Problem(
            404, f"no machine has the fingerprint {value[:80]!r}; known: {named}", pointer=pointer, where=where
        )
    return machines[value]


def read_ops(
    values: Sequence[Any], stored: StoredDocuments, limits: ServiceSettings, *, pointer: str = "/ops"
) -> list[Op]:
    """Return the ops that `values` give as documents, or as keys of stored ops; Problem 404 for an unknown key."""
    if not 1 <= len(values) <= limits.max_ops:
        raise FormatError(f"{len(values)} ops; 1 to {limits.max_ops} are allowed", pointer=pointer)
    known = stored.ops({value for value in values if isinstance(value, str)})
    ops = []
    for i, value in enumerate(values):
        where = f"{pointer}/{i}"
        if isinstance(value, str):
            if value not in known:
                raise Problem(404, f"the store knows no op with the key {value[:80]!r}; send it in full", pointer=where)
            ops.append(known[value])
        else:
            with reading(where):
                ops.append(Op.from_json(value, pointer=where))
    return ops


def read_cases(values: Sequence[Any] | None, limits: ServiceSettings) -> list[Case] | None:
    """Return the cases; None where the request names none."""
    if values is None:
        return None
    if not 1 <= len(values) <= limits.max_cases:
        raise FormatError(f"{len(values)} cases; 1 to {limits.max_cases} are allowed", pointer="/cases")
    cases = []
    for i, value in enumerate(values):
        cases.append(read_case(value, f"/cases/{i}"))
        refuse_unknown(value, _CASE_MEMBERS, f"/cases/{i}")
    return cases


def refuse_unknown(entry: Mapping[str, Any], allowed: Set[str], pointer: str) -> None:
    """Raise FormatError for members that are not `allowed`; most such members are misspelt."""
    for name in entry:
        if name not in allowed:
            raise FormatError(f"unknown member {name[:40]!r}; known: {', '.join(sorted(allowed))}", pointer=pointer)


def read_case(value: Any, pointer: str) -> Case:
    """Return the case in an object with the member `threads` and, if it is not compact, `affinity`."""
    threads = member(value, "threads", int, pointer=pointer)
    affinity = member(value, "affinity", str, pointer=pointer, default="compact")
    if affinity not in list(Affinity):
        raise FormatError(
            f"affinity is {affinity[:40]!r}; it must be {' or '.join(Affinity)}", pointer=f"{pointer}/affinity"
        )
    if not 1 <= threads <= MAX_CORES:
        raise FormatError(f"threads={threads} must be 1 to {MAX_CORES}", pointer=f"{pointer}/threads")
    return Case(threads, Affinity(affinity))


def read_graph(value: Any, store: Store, limits: ServiceSettings, *, pointer: str = "/graph") -> OpGraph:
    """Return the graph in a `threadcast.graph/1` document, or the stored graph of this name."""
    if isinstance(value, str):
        if value not in store.graphs():
            raise Problem(404, f"no graph is stored as {value[:80]!r}", pointer=pointer)
        graph = store.graph(value)
    else:
        listed = value.get("ops") if isinstance(value, dict) else None
        if isinstance(listed, list):
            _check_size(len(listed), limits, f"{pointer}/ops")
        with below(pointer), reading(""):
            graph = OpGraph.from_json(value)
    _check_size(len(graph), limits, pointer)
    return graph


def _check_size(ops: int, limits: ServiceSettings, pointer: str) -> None:
    if ops > limits.max_ops:
        raise FormatError(f"{ops} ops are more than the {limits.max_ops} allowed", pointer=pointer)


@contextmanager
def below(pointer: str) -> Iterator[None]:
    """Put `pointer` before the pointer of a FormatError of the block, which reads the document at `pointer`."""
    try:
        yield
    except FormatError as error:
        raise FormatError(str(error), pointer=pointer + error.pointer) from error
