"""Sends one request again and again over some connections and prints how long answers took, as JSON.

    python benchmarks/service_load.py URL REQUEST_FILE --connections 8 --seconds 5

A process of its own, one thread: each connection sends its next request when the last one has been answered.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r", re.IGNORECASE)


@dataclass(slots=True)
class Connection:
    """A connection and what has arrived of the answer that it waits for."""

    socket: socket.socket
    sent_s: float = 0.0
    arrived: bytearray = field(default_factory=bytearray)

    def send(self, request: bytes) -> None:
        self.arrived.clear()
        self.sent_s = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """The status once the answer is whole."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise SystemExit("the server closed a connection")
        self.arrived += data
        end = self.arrived.find(b"\r\n\r\n")
        if end < 0:
            return None
        found = LENGTH.search(self.arrived, 0, end + 2)
        if found is None:
            raise SystemExit("an answer without Content-Length")
        whole = len(self.arrived) >= end + 4 + int(found[1])
        return int(self.arrived[9:12]) if whole else None


def load(url: str, requests: list[bytes], connections: int, seconds: float) -> dict[str, object]:
    """Seconds of each answer, and how many were not 200, in `seconds` after a tenth of it to warm up."""
    where = urlsplit(url)
    taken, wrong, turn = [], 0, 0
    with selectors.DefaultSelector() as ready:
        for _ in range(connections):
            made = Connection(socket.create_connection((where.hostname, where.port), timeout=60))
            made.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(made.socket, selectors.EVENT_READ, made)
            made.send(requests[turn % len(requests)])
            turn += 1
        start_s = time.perf_counter() + seconds / 10
        end_s = start_s + seconds
        while (now_s := time.perf_counter()) < end_s:
            for key, _ in ready.select(1.0):
                status = key.data.receive()
                if status is None:
                    continue
                now_s = time.perf_counter()
                if now_s >= start_s:
                    taken.append(now_s - key.data.sent_s)
                    wrong += status != 200
                key.data.send(requests[turn % len(requests)])
                turn += 1
        for key in list(ready.get_map().values()):
            key.data.socket.close()
    return {"seconds": seconds, "taken_s": taken, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("requests", type=Path, help="JSON: an array of requests as text")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    requests = [request.encode() for request in json.loads(asked.requests.read_text())]
    json.dump(load(asked.url, requests, asked.connections, asked.seconds), sys.stdout)


if __name__ == "__main__":
    main()
