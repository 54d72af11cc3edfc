"""Converts the documents in requests, which `service.formats` has checked, to objects of `core`.

Errors point to the wrong member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from threadcast.core import Affinity, Case, Machine, Op, OpGraph, read_machine
from threadcast.core.errors import FormatError, InvalidInput, NotFound
from threadcast.core.machine_names import find_machine
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


local_machine = cache(read_machine)
"""The machine of this service, as it was when it was first asked for."""


def asked_machine(value: Any, stored: StoredDocuments, *, pointer: str = "/machine", where: Where = "body") -> Machine:
    """Return the machine in a document, or the one that a number of cores or a name means (`find_machine`); for None
    the only machine in the store.

    FormatError for a wrong document; Problem for an unknown name, or None where the store has not one machine.
    """
    if isinstance(value, dict):
        return Machine.described(value, pointer=pointer)
    machines = stored.machines()
    if value is None:
        if len(machines) == 1:
            return next(iter(machines.values()))
        raise Problem(
            422, f"say which machine: the store knows {len(machines)}; give a number of cores, \"local\" (that of this "
            "service), a name of /v1/machines, or a document", pointer=pointer, where=where,
        )  # fmt: skip
    try:
        return machine_called(str(value), machines)
    except (NotFound, InvalidInput) as error:
        raise Problem(404 if isinstance(error, NotFound) else 422, str(error), pointer=pointer, where=where) from error


def machine_called(name: str, known: Mapping[str, Machine]) -> Machine:
    """As `find_machine`, where the machine of this service is known, too."""
    here = local_machine()
    return find_machine(name, {here.fingerprint: here, **known}, local=local_machine)


def read_ops(values: Sequence[Any], stored: StoredDocuments, *, pointer: str = "/ops") -> list[Op]:
    """Return the ops that `values` give as documents, or as keys of stored ops; Problem 404 for an unknown key."""
    ops = read_each_op(values, stored, pointer=pointer)
    for op in ops:
        if isinstance(op, Problem):
            raise op
    return cast(list[Op], ops)


def read_each_op(values: Sequence[Any], stored: StoredDocuments, *, pointer: str = "/ops") -> list[Op | Problem]:
    """As `read_ops`, with the problem in place of an op whose key is unknown.

    Ops that were read already (`formats.Ops`) are returned as they are.
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


def read_case(value: formats.Case | formats.Measurement) -> Case:
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
