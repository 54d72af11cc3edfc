"""Converts the documents in requests, which `service.formats` has checked, to objects of `core`.

Errors point to the wrong member.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from threadcast.core import Affinity, Case, Machine, Op, OpGraph
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.service import formats
from threadcast.service.problems import Problem, Where
from threadcast.service.settings import ServiceSettings
from threadcast.service.stored_documents import StoredDocuments
from threadcast.store import Store


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
        return Machine.described(value, pointer=pointer)
    machines = stored.machines()
    named = ", ".join(list(machines)[:5]) or "none"
    if value is None:
        if len(machines) == 1:
            return next(iter(machines.values()))
        raise Problem(
            422, f"name the machine: the store knows {len(machines)} ({named}); a whole document will do, too",
            pointer=pointer, where=where,
        )  # fmt: skip
    if value not in machines:
        raise Problem(
            404, f"no machine has the fingerprint {value[:80]!r}; known: {named}", pointer=pointer, where=where
        )
    return machines[value]


def read_ops(values: Sequence[Any], stored: StoredDocuments, *, pointer: str = "/ops") -> list[Op]:
    """Return the ops that `values` give as documents, or as keys of stored ops; Problem 404 for an unknown key."""
    ops = read_each_op(values, stored, pointer=pointer)
    for op in ops:
        if isinstance(op, Problem):
            raise op
    return cast(list[Op], ops)


def read_each_op(values: Sequence[Any], stored: StoredDocuments, *, pointer: str = "/ops") -> list[Op | Problem]:
    """As `read_ops`, with the problem in place of an op whose key is unknown.

    Ops that were read already (`formats.OpOrKey`) are returned as they are.
    """
    if all(type(value) is Op for value in values):
        return list(values)
    known = stored.ops({value for value in values if isinstance(value, str)})
    ops: list[Op | Problem] = []
    for i, value in enumerate(values):
        if type(value) is Op:
            ops.append(value)
            continue
        where = f"{pointer}/{i}"
        if isinstance(value, str):
            unknown = f"the store knows no op with the key {value[:80]!r}; send it in full"
            ops.append(known.get(value) or Problem(404, unknown, pointer=where))
        else:
            with reading(where):
                ops.append(Op.from_json(value, pointer=where))
    return ops


def read_case(value: formats.Case | formats.Measurement | formats.MeasurementRow) -> Case:
    """Return the case that the members `threads` and, if it is not compact, `affinity` describe."""
    return Case(value["threads"], Affinity(value.get("affinity", "compact")))


def read_graph(value: Any, store: Store, limits: ServiceSettings, *, pointer: str = "/graph") -> OpGraph:
    """Return the graph in a `threadcast.graph/1` document, or the stored graph of this name."""
    if isinstance(value, str):
        if value not in store.graphs():
            raise Problem(404, f"no graph is stored as {value[:80]!r}", pointer=pointer)
        graph = store.graph(value)
        if len(graph) > limits.max_ops:
            raise FormatError(f"{len(graph)} ops are more than max_ops={limits.max_ops}", pointer=pointer)
        return graph
    with below(pointer), reading(""):
        return OpGraph.from_json(value)


@contextmanager
def below(pointer: str) -> Iterator[None]:
    """Put `pointer` before the pointer of a FormatError of the block, which reads the document at `pointer`."""
    try:
        yield
    except FormatError as error:
        raise FormatError(str(error), pointer=pointer + error.pointer) from error
