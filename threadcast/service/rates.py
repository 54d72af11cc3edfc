"""Rates of requests, and a token bucket for each caller that several processes share."""

from __future__ import annotations

import math
import re
import sqlite3
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from threadcast.core.errors import InvalidInput

PERIODS_S = {"second": 1, "minute": 60, "hour": 3600}
"""Periods that a rate may be per, in seconds."""

MOST_REQUESTS = 1_000_000
"""Largest number of requests in a rate."""

SWEEP_EVERY = 1_000
"""Requests after which buckets that are full again are forgotten, so that many callers need no memory for ever."""

WAIT_S = 5.0
"""Longest wait for another process that writes to the buckets, in seconds; it commonly takes some microseconds."""

_ROUNDING_S = 1e-3
"""A time that is longer than whole seconds by less than this is not rounded up: the rest is an error of rounding."""

_TEXT = re.compile(r"([1-9][0-9]{0,6})/(second|minute|hour)")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests in a period of so many seconds."""

    requests: int
    period_s: int

    @classmethod
    def parse(cls, text: str) -> Rate | None:
        """Return the rate that a text such as "600/minute" names, None for "none"; InvalidInput for other texts."""
        if text == "none":
            return None
        found = _TEXT.fullmatch(text)
        if found is None or int(found[1]) > MOST_REQUESTS:
            raise InvalidInput(
                f'the rate {text[:40]!r} must be "none" or a number of at most {MOST_REQUESTS:,} with a period, '
                "as in 10/second, 600/minute or 10000/hour"
            )
        return cls(int(found[1]), PERIODS_S[found[2]])


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a request: whether it is allowed, and what its caller has left."""

    rate: Rate
    allowed: bool
    remaining: int
    """Requests that are allowed at once."""
    full_in_s: int
    """Seconds, rounded up, until all requests of a period are allowed at once again."""
    retry_in_s: int
    """Seconds, rounded up, until the next request is allowed; 0: at once."""


class TokenBuckets:
    """A token bucket for each caller, in a SQLite file that processes share; without a file, in memory.

    A bucket holds the requests of one period and refills evenly: a caller may send them all at once, and then as many
    as the rate says. It is kept as the one moment at which it is full again (the generic cell rate algorithm, ITU-T
    I.371), so that a request is one statement. Safe to use from threads. Open it after a fork. The file is closed when
    this object is freed, if not before.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._database = sqlite3.connect(
            path or ":memory:", timeout=WAIT_S, isolation_level=None, check_same_thread=False
        )
        weakref.finalize(self, self._database.close)
        self._database.execute("PRAGMA journal_mode = WAL")  # a process may be killed while it writes
        self._database.execute("PRAGMA synchronous = OFF")  # buckets need not outlive the machine's power
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS buckets (caller TEXT PRIMARY KEY, full_s REAL NOT NULL) WITHOUT ROWID"
        )

    def take(self, caller: str, rate: Rate, now_s: float | None = None) -> Taken:
        """Take one request from the caller's bucket, if there is one.

        `now_s` is the present time in seconds on a clock that all processes of the machine share: time.monotonic().
        """
        now_s = time.monotonic() if now_s is None else now_s
        each_s = rate.period_s / rate.requests
        values = {"caller": caller, "now": now_s, "each": each_s, "period": rate.period_s + each_s * 1e-6}
        with self._lock:
            self._sweep(now_s)
            found = self._database.execute(
                "INSERT INTO buckets VALUES (:caller, :now + :each) ON CONFLICT DO UPDATE "
                "SET full_s = max(full_s, :now) + :each WHERE max(full_s, :now) + :each - :now <= :period "
                "RETURNING full_s", values,
            ).fetchall()  # fmt: skip
            allowed = bool(found)
            if not allowed:
                found = self._database.execute("SELECT full_s FROM buckets WHERE caller = :caller", values).fetchall()
        missing_s = max(found[0][0] - now_s, 0.0) if found else 0.0
        left = (rate.period_s - missing_s) / each_s + 1e-6
        return Taken(
            rate, allowed, max(math.floor(left), 0), math.ceil(missing_s - _ROUNDING_S),
            0 if left >= 1 else max(math.ceil(missing_s + each_s - rate.period_s - _ROUNDING_S), 1),
        )  # fmt: skip

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _sweep(self, now_s: float) -> None:
        self._asked += 1
        if self._asked % SWEEP_EVERY == 0:
            self._database.execute("DELETE FROM buckets WHERE full_s <= ?", (now_s,))
