"""Schedulers of Dask: one of a new cluster of one worker here, and clients of any."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client, LocalCluster
from distributed.comm.addressing import get_address_host_port

from threadcast.core.errors import MeasurementError

CONNECT_S = 10.0
"""Longest wait for the answer of a scheduler, or of a worker that is connected."""


@contextmanager
def local_cluster(address: str | None) -> Iterator[str]:
    """A context manager with this address of a scheduler; None: that of a new cluster of one worker here."""
    if address is not None:
        yield address
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker ends with the cluster, not before it
    try:
        # A heartbeat that the end of the cluster cuts off would be logged with a traceback.
        cluster = LocalCluster(
            n_workers=1, threads_per_worker=1, silence_logs=logging.CRITICAL,
            dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False},  # without one it takes port 8787
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    with cluster:
        yield cluster.scheduler_address


def client_of(address: str) -> Client:
    """A client of the scheduler at this address; MeasurementError where none answers."""
    for name in ("distributed", "asyncio"):  # what they log of lost machines is told by the campaign
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if address.partition("://")[0] in ("tcp", "tls", "ws", "wss", address):
            get_address_host_port(address)  # else a client that is not complete fails once more when it is deleted
        return Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise MeasurementError(f"no Dask scheduler answers at {address}: {error}") from error


def close(client: Client) -> None:
    """Close a client, and what Dask leaves of one that is connecting again: its event loop and an open socket."""
    loop: Any = client.loop
    client.close()
    if loop.asyncio_loop.is_closed():  # else it is another's, which goes on
        with suppress(KeyError):  # a new loop has just let go of this one
            loop.close(all_fds=True)
