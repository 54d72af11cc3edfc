"""Curve tables as Arrow streams: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from tests.prediction.predicting import MACHINE, OPS, assert_same, local
from threadcast.core.errors import FormatError, ServiceError
from threadcast.prediction.answers import read_stream as read_answer
from threadcast.prediction.arrow_curves import read_stream, write_stream

KEYS = [op.key for op in OPS]
TABLE = local().curves(OPS)
STREAM = write_stream(TABLE, machine=MACHINE.fingerprint, keys=KEYS)


def rewritten(change: Callable[[dict[str, object], pa.RecordBatch], pa.RecordBatch], **options: object) -> bytes:
    """STREAM with what `change` makes of its metadata and its batch."""
    with pa.ipc.open_stream(STREAM) as stream:
        batch = stream.read_next_batch()
    document = json.loads(batch.schema.metadata[b"threadcast"])
    batch = change(document, batch)
    schema = batch.schema.with_metadata({b"threadcast": json.dumps(document).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue().to_pybytes()


def read(content: bytes) -> object:
    return read_answer(content, keys=KEYS, cases=MACHINE.cases(), machine=MACHINE)


def with_point(value: float) -> bytes:
    """STREAM whose first point is `value`."""
    changed = local().curves(OPS)
    changed.seconds[0, 0] = value
    return write_stream(changed, machine=MACHINE.fingerprint, keys=KEYS)


def without_column(document: dict[str, object], batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns(["low"])


def with_member(**members: object) -> bytes:
    def change(document: dict[str, object], batch: pa.RecordBatch) -> pa.RecordBatch:
        document.update(members)
        return batch

    return rewritten(change)


def test_a_table_is_read_as_it_was_written() -> None:
    document, table = read_stream(STREAM, keys=KEYS, cases=MACHINE.cases())
    assert_same(table, TABLE)
    assert (document["machine"], table.model) == (MACHINE.fingerprint, "serial_share@1")


def test_any_reader_of_arrow_reads_the_columns_by_name() -> None:
    with pa.ipc.open_stream(STREAM) as stream:
        columns = stream.read_all().to_pydict()
    assert columns["op"] == KEYS
    np.testing.assert_array_equal(np.array(columns["seconds"]), TABLE.seconds)


WRONG = {
    "empty": b"",
    "json": b'{"seconds": []}',
    "cut off": STREAM[:-200],
    "only a schema": STREAM[:600],
    "compressed": rewritten(lambda document, batch: batch, compression="zstd"),
    "a column less": rewritten(without_column),
    "a row less": rewritten(lambda document, batch: batch.slice(0, 2)),
    "other sources": with_member(sources=["measured"]),
    "other cases": with_member(cases=[]),
    "another form": with_member(schema="threadcast.curves/2"),
    "another machine": with_member(machine="elsewhere-4c-00000000"),
    "no model": with_member(model=None),
    "an endless model name": with_member(model="x" * 10_000),
    "not finite": with_point(float("nan")),
    "negative": with_point(-1.0),
    "outside its interval": with_point(1e6),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG.keys())
def test_whatever_is_wrong_with_an_answer_it_is_refused(content: bytes) -> None:
    with pytest.raises(ServiceError):
        read(content)


def test_changed_bytes_are_refused_or_give_a_table() -> None:
    draw = random.Random(0)
    for _ in range(500):
        changed = bytearray(STREAM)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            _, table = read_stream(bytes(changed), keys=KEYS, cases=MACHINE.cases())
        except FormatError:
            continue
        assert table.seconds.shape == TABLE.seconds.shape


def test_nothing_is_imported_while_an_answer_is_read_as_that_takes_some_time() -> None:
    code = (
        "import sys; from threadcast.core import Machine; from threadcast.prediction.arrow_curves import read_stream; "
        "from threadcast.prediction.questions import Questions; machine = Machine.uniform('m', 4); "
        "Questions(machine, None); content = sys.stdin.buffer.read(); keys = sys.argv[1:]; known = set(sys.modules); "
        "read_stream(content, keys=keys, cases=machine.cases()); print(*set(sys.modules) - known)"
    )
    done = subprocess.run([sys.executable, "-c", code, *KEYS], input=STREAM, capture_output=True, check=True)
    assert not {"pyarrow", "pandas", "numpy"} & set(done.stdout.decode().split())
