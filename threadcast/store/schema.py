"""The tables of a measurement store, and the revisions that its files may have."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text

REVISIONS = ("0.1.0",)
"""Schema revisions, oldest first, by the release that brought each; they have a file in `migrations/versions`. The last
one is the current schema."""

VERSION_TABLE = "threadcast_schema"
"""Name of alembic's version table. It is not alembic's default, so that another program's alembic database is not
mistaken for a store."""

metadata = MetaData()

machines = Table(
    "machines",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fingerprint", Text, nullable=False, unique=True),
    Column("document", Text, nullable=False),  # JSON of Machine.to_json
)

ops = Table(
    "ops",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("document", Text, nullable=False),  # JSON of Op.to_json
    Index("ix_ops_kind", "kind"),
)

# One row a measurement: a row a sample would take several times the space and the time, and samples are never asked
# for one by one. Documents are text and not JSON columns, because attributes may hold NaN or infinity, which
# PostgreSQL's JSON refuses.
measurements = Table(
    "measurements",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("op_id", Integer, ForeignKey("ops.id"), nullable=False),
    Column("machine_id", Integer, ForeignKey("machines.id"), nullable=False),
    Column("threads", Integer, nullable=False),
    Column("affinity", Text, nullable=False),
    Column("sample_count", Integer, nullable=False),
    Column("counters", Text, nullable=False),  # [names of the counters]
    # (1 + counters, samples) float64, little-endian: seconds, then each counter, NaN where it could not be read
    Column("samples", LargeBinary, nullable=False),
    Column("conditions", Text, nullable=False),  # {name: JSON scalar}
    Column("stored_s", Double),  # seconds since 1970; NULL: unknown
    # Each ends with id, so that a page begins where the one before ended; of an op, that is by machine.
    Index("ix_measurements_op", "op_id", "machine_id", "id"),
    Index("ix_measurements_machine", "machine_id", "id"),
)

# What is known of an op in a case on a machine (`case_figures`): figures of all measurements, and the newest samples. A
# new measurement changes one row of these, however many measurements there are.
cases = Table(
    "cases",
    metadata,
    Column("machine_id", Integer, ForeignKey("machines.id"), primary_key=True),
    Column("op_id", Integer, ForeignKey("ops.id"), primary_key=True),
    Column("threads", Integer, primary_key=True),
    Column("affinity", Text, primary_key=True),
    Column("measurements", Integer, nullable=False),
    Column("samples", Integer, nullable=False),
    Column("oldest_s", Double),  # time of the oldest measurement in seconds since 1970; NULL where none has one
    Column("unlikeness", Integer, nullable=False),  # of the caches in the newest samples (`case_figures.unlikeness`)
    Column("newest", LargeBinary, nullable=False),  # (samples, 2) float64, little-endian: time (NaN: unknown), seconds
    Column("median_s", Double, nullable=False),  # of the newest samples
)

# Figures of one op on one machine (`summaries`), from the medians of its cases, for pages that sort and filter many.
summaries = Table(
    "summaries",
    metadata,
    Column("machine_id", Integer, ForeignKey("machines.id"), primary_key=True),
    Column("op_id", Integer, ForeignKey("ops.id"), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),  # shapes of the inputs, else attributes
    Column("words", Text, nullable=False),  # key and subject in lower case, to be searched
    Column("cases", Integer, nullable=False),
    Column("measurements", Integer, nullable=False, server_default="0"),
    Column("samples", Integer, nullable=False),
    Column("medians", LargeBinary, nullable=False, server_default=""),  # of `cases`, as `case_figures` packs them
    Column("best_s", Double, nullable=False),  # median seconds in the fastest case
    Column("best_threads", Integer, nullable=False),
    Column("best_affinity", Text, nullable=False),
    Column("speedup", Double, nullable=False),  # on the fewest threads measured over best_s
    Column("all_threads", Double, nullable=False),  # on the most threads measured over best_s
    # Each index ends with op_id, so that a page far down, or a word, is found in the index alone.
    Index("ix_summaries_best", "machine_id", "best_s", "op_id"),
    Index("ix_summaries_kind", "machine_id", "kind", "best_s", "op_id"),
    Index("ix_summaries_samples", "machine_id", "samples", "op_id"),
    Index("ix_summaries_speedup", "machine_id", "speedup", "op_id"),
    Index("ix_summaries_all_threads", "machine_id", "all_threads", "op_id"),
    Index("ix_summaries_words", "machine_id", "words", "op_id"),
    Index("ix_summaries_op", "op_id"),
)

# How much was measured on a machine, so that a page's total needs no sum over all ops.
totals = Table(
    "totals",
    metadata,
    Column("machine_id", Integer, ForeignKey("machines.id"), primary_key=True),
    Column("measurements", Integer, nullable=False),
    Column("samples", BigInteger, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("idempotency_key", Text, primary_key=True),
    Column("digest", Text, nullable=False, server_default=""),  # of the request; empty where none was given
    Column("answer", Text, nullable=False, server_default=""),  # JSON that the sender got
    Column("created_s", Float, nullable=False, server_default="0"),  # seconds since 1970
    Column("expires_s", Double),  # seconds since 1970; NULL: never
    Index("ix_batches_expires", "expires_s"),
)

plans = Table(
    "plans",
    metadata,
    Column("name", Text, primary_key=True),
    Column("document", Text, nullable=False),
    Column("created_s", Float, nullable=False),  # seconds since 1970
    Index("ix_plans_created", "created_s"),
)

# What decisions are made from: graph, curves, machine and policy, for every process of a service.
contexts = Table(
    "contexts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("used_s", Double, nullable=False),  # seconds since 1970
    Index("ix_contexts_used", "used_s"),
)

graphs = Table(
    "graphs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("document", Text, nullable=False),  # JSON of OpGraph.to_json
)

graph_ops = Table(
    "graph_ops",
    metadata,
    Column("graph_id", Integer, ForeignKey("graphs.id", ondelete="CASCADE"), primary_key=True),
    Column("op_id", Integer, ForeignKey("ops.id"), primary_key=True),
    Index("ix_graph_ops_op", "op_id"),
)

# Plan and trace of each `threadcast run`; pages show the last one of each graph and machine.
runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("graph", Text, nullable=False),  # a graph's name
    Column("machine_id", Integer, ForeignKey("machines.id"), nullable=False),
    Column("time", Text, nullable=False),  # ISO 8601, UTC
    Column("plan", Text, nullable=False),  # JSON of Plan.to_json
    Column("trace", Text, nullable=False),  # JSON of Trace.to_json
    Index("ix_runs_graph", "graph", "machine_id", "id"),
)
