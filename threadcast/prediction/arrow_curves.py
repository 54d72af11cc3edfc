"""Curve tables as Arrow IPC streams, the compact form of large answers; this needs pyarrow (`threadcast[arrow]`).

One record batch: `op` (key of each row's op), `seconds`, `low`, `high` (lists of float64, one number a case; seconds)
and `source` (lists of int8). The schema's metadata has a JSON document under `threadcast`: `schema`, `machine`,
`model`, `cases` and `sources`, the names that the numbers in `source` are positions of; and where an op has no forecast
`errors`, its problem in the place of its row, null for each other one.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threadcast.core import Case, CurveTable
from threadcast.core.curve_codec import SOURCE_NAMES, case_documents
from threadcast.core.errors import FormatError

MEDIA_TYPE = "application/vnd.apache.arrow.stream"
SCHEMA = "threadcast.curves/1"
_METADATA = b"threadcast"
_MARKS = 64
"""More bytes than the marks at the end of a stream and before its parts take."""
_NUMBERS = ("seconds", "low", "high")


def is_available() -> bool:
    """Whether this process can read and write Arrow.

    pyarrow is imported here and not where an answer is read: that takes some tenths of a second, which would count for
    the request's deadline, and a process that ends in the middle of it, in another thread, is aborted.
    """
    with suppress(ImportError):
        importlib.import_module("pyarrow")
        return True
    return False


def write_stream(
    table: CurveTable, *, machine: str, keys: Sequence[str], errors: Sequence[Mapping[str, Any] | None] = ()
) -> bytes:
    """Return the stream of a table; `machine` is a fingerprint, `keys` are those of its ops.

    `errors`, where there are any, has None for each op with a row in the table, and the problem of each other one,
    whose row is 0 throughout.
    """
    import pyarrow as pa

    cases, known = len(table.cases), [row for row, error in enumerate(errors) if error is None]
    columns = [pa.array(keys, pa.string())]
    for name in (*_NUMBERS, "source"):
        numbers = getattr(table, name)
        if errors:
            numbers, some = np.zeros((len(keys), cases), numbers.dtype), numbers
            numbers[known] = some
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(numbers).reshape(-1)), cases))
    document = {
        "schema": SCHEMA, "machine": machine, "model": table.model, "cases": case_documents(table.cases),
        "sources": SOURCE_NAMES, **({"errors": errors} if errors else {}),
    }  # fmt: skip
    schema = _schema(pa, cases).with_metadata({_METADATA: json.dumps(document).encode()})
    batch = pa.record_batch(columns, schema=schema)
    head = schema.serialize().size + _MARKS
    buffer = pa.allocate_buffer(head + pa.ipc.get_record_batch_size(batch))  # one that grows would be copied
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch)
    return bytes(memoryview(buffer)[: sink.tell()])


def read_stream(content: bytes, *, keys: Sequence[str], cases: Sequence[Case]) -> tuple[Mapping[str, Any], CurveTable]:
    """Return the metadata and the table of a stream about these ops and cases.

    FormatError for a stream of another form, with other ops or cases, or with points that no curve has. Compressed
    streams are refused: a short one can unpack to more than there is memory.
    """
    import pyarrow as pa

    try:
        messages = pa.ipc.MessageReader.open_stream(content)
        head, body = messages.read_next_message(), messages.read_next_message()
        schema = pa.ipc.read_schema(head)
        if not schema.equals(_schema(pa, len(cases))):
            raise FormatError("the columns are not those of curves")
        if is_compressed(body.metadata.to_pybytes()):
            raise FormatError("the columns are compressed, which was not asked for")
        batch = pa.ipc.read_record_batch(body, schema)
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise FormatError("a column has nulls")
        document = json.loads((schema.metadata or {}).get(_METADATA, b"null"))
        found = batch.column("op").to_pylist()
        shape = batch.num_rows, len(cases)
        arrays = {name: _flat(batch.column(name), np.float64).reshape(shape) for name in _NUMBERS}
        arrays["source"] = _flat(batch.column("source"), np.int8).reshape(shape)
    except FormatError:
        raise
    except (pa.ArrowException, OSError, EOFError, StopIteration, ValueError, struct.error, MemoryError) as error:
        raise FormatError(f"no Arrow stream of curves: {error!r:.200}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise FormatError(f"the stream has no metadata of {SCHEMA}")
    if found != list(keys) or document.get("cases") != case_documents(cases):
        raise FormatError("the stream is about other ops or cases than were asked for")
    if document.get("sources") != list(SOURCE_NAMES):
        raise FormatError("the stream names other sources")
    return document, CurveTable(tuple(cases), **arrays, model=str(document.get("model")))


def _schema(pa: Any, cases: int) -> Any:
    numbers, codes = (pa.list_(pa.field("item", kind), cases) for kind in (pa.float64(), pa.int8()))
    return pa.schema([("op", pa.string()), *((name, numbers) for name in _NUMBERS), ("source", codes)])


def _flat(column: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """The numbers in the lists of a column. pyarrow's own `to_numpy` would import pandas, see `is_available`."""
    values = column.flatten()
    if values.null_count:
        raise FormatError("a list has nulls")
    if not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * np.dtype(dtype).itemsize)


def is_compressed(metadata: bytes) -> bool:
    """Whether the flatbuffer of a record batch's message says that its buffers are compressed.

    pyarrow decompresses before anything can be looked at. Source: Arrow's format/Message.fbs: the third member of
    `Message` is the header, the fourth of `RecordBatch` the compression.
    """
    message = _offset(metadata, 0)
    header = _member(metadata, message, 2)
    return header is None or _member(metadata, _offset(metadata, header), 3) is not None


def _offset(buffer: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _member(buffer: bytes, table: int, number: int) -> int | None:
    """The position of a member of a flatbuffer's table; None where it is not there."""
    members = table - int(struct.unpack_from("<i", buffer, table)[0])
    size = struct.unpack_from("<H", buffer, members)[0]
    at = 4 + 2 * number
    offset = struct.unpack_from("<H", buffer, members + at)[0] if at < size else 0
    return table + int(offset) if offset else None
