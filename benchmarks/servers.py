"""HTTP servers for the service, by the same attacks and loads. Ten minutes.

    python benchmarks/servers.py [--rounds 5] [--seconds 3] [--odd 2000] [--parts "Waitress;loads"] [--write]

Needs wrk, and nginx for its row; other servers are installed into build/servers. Parts are the attacks on one server,
by its name, and the loads. With --parts only these are measured and kept in build/servers/parts; with --parts "" the
tables are of what is kept, which must be of one commit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures.service import HOLDING as HELD
from figures.service import LOADS, SERVERS
from figures.study import spread
from run_facts import RunFacts
from server_attacks import HOLDING, Address, Odd, Reading, holds, odd_requests, readings, served, trickled_s
from server_kinds import KINDS, PACKAGES, install

HERE = Path(__file__).parent
KEPT = PACKAGES / "parts"
LOADS_PART = "loads"
THREADS = 8
SENT_BYTES = 300
HIDDEN_ANSWER = b"hidden"


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1]) % 20_000 + 20_000


@contextlib.contextmanager
def running(kind: str, directory: Path) -> Iterator[Address]:
    """The address of a server of this kind."""
    port = free_port()
    command = [sys.executable, str(HERE / "server_kinds.py"), kind, str(port), str(THREADS)]
    with (directory / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=HERE, start_new_session=True)
    address = ("127.0.0.1", port)
    try:
        until_s = time.monotonic() + 30
        while not served(address):
            if process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit(f"{kind} did not start: {(directory / 'log').read_text()[-500:]}")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def attacked(kind: str, directory: Path, odd: list[Odd]) -> tuple[list[str], list[Reading]]:
    """The cells of a row but the last two, and how the server read the odd requests."""
    cells = []
    for attack in HOLDING:
        with running(kind, directory) as address:
            cells.append("served" if holds(address, attack) else "**not served**")
    with running(kind, directory) as address:
        closed_s = trickled_s(address)
        cells.append("never" if closed_s is None else f"{closed_s:.0f} s")
        return cells, readings(address, odd)


def accepted_badly(found: list[Reading], odd: list[Odd]) -> int:
    """Requests that must be refused and were not."""
    return sum(reading.accepted and request.ambiguous for reading, request in zip(found, odd, strict=True))


def differ(kind: str, found: dict[str, list[Reading]]) -> tuple[int, dict[str, int]]:
    """Requests that this and another server accept and frame differently, and how many by the other server's name."""
    by_other = {
        name: [frame_differently(own, other) for own, other in zip(found[kind], others, strict=True)]
        for name, others in found.items()
        if name != kind
    }
    any_other = sum(map(any, zip(*by_other.values(), strict=True)))
    return any_other, {name: sum(each) for name, each in by_other.items() if any(each)}


def frame_differently(one: Reading, other: Reading) -> bool:
    """Whether both accept a request and take other bytes for the next one.

    Where both answered the hidden request, they found its beginning, whatever the application got of the body.
    """
    if not (one.accepted and other.accepted) or one.bodies == other.bodies:
        return False
    return not (one.bodies[-1] == other.bodies[-1] == HIDDEN_ANSWER and len(one.bodies) == len(other.bodies))


def lost(kind: str, found: dict[str, list[Reading]]) -> int:
    """Requests whose body this server kept from the application, and another one that framed them alike did not."""
    count = 0
    for i, own in enumerate(found[kind]):
        others = [each[i] for name, each in found.items() if name != kind and each[i].accepted]
        count += (
            own.accepted
            and not own.bodies[0]
            and any(other.bodies[0] and not frame_differently(own, other) for other in others)
        )
    return count


def per_second(address: Address, directory: Path, seconds: int) -> float:
    """Echoes a second."""
    script = directory / "post.lua"
    script.write_text(f'wrk.method = "POST"\nwrk.body = string.rep("x", {SENT_BYTES})\n')
    command = ["wrk", "-t1", "-c8", f"-d{seconds}s", "-s", str(script), f"http://{address[0]}:{address[1]}/echo"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in said:
        raise SystemExit(f"wrong answers: {said}")
    return float(re.findall(r"Requests/sec: +([0-9.]+)", said)[0])


def attack_part(kind: str, odd_count: int) -> dict[str, Any]:
    """The attacks on one server, as JSON."""
    part = _begun() | {"odd": odd_count}
    with tempfile.TemporaryDirectory(prefix="threadcast-servers-") as name:
        cells, found = attacked(kind, Path(name), odd_requests(odd_count))
    read = [[reading.accepted, [body.decode("latin-1") for body in reading.bodies]] for reading in found]
    return part | {"cells": cells, "readings": read}


def loads_part(kinds: list[str], rounds: int, seconds: int) -> dict[str, Any]:
    """Echoes a second of all servers, by turns, as JSON."""
    part = _begun() | {"rounds": rounds, "seconds": seconds}
    per_s: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="threadcast-servers-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        addresses = {kind: stack.enter_context(running(kind, directory)) for kind in kinds}
        for _ in range(rounds):
            for kind, address in addresses.items():
                per_s[kind].append(per_second(address, directory, seconds))
    return part | {"per_s": per_s}


def _begun() -> dict[str, Any]:
    return {"run": RunFacts.now().to_json(), "load": os.getloadavg()[0]}


def rows_of(parts: dict[str, dict[str, Any]]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The rows of attacks and of loads; SystemExit where parts are not of one commit, machine and number of odd
    requests."""
    runs = [RunFacts.from_json(part["run"]) for part in parts.values()]
    kinds = [kind for kind in KINDS if kind in parts]
    if len({(run.commit, run.machine) for run in runs}) > 1 or len({parts[kind]["odd"] for kind in kinds}) > 1:
        raise SystemExit(f"parts in {KEPT} are of several commits, machines or numbers of odd requests; measure again")
    odd = odd_requests(parts[kinds[0]]["odd"])
    found = {
        kind: [
            Reading(accepted, tuple(body.encode("latin-1") for body in bodies))
            for accepted, bodies in parts[kind]["readings"]
        ]
        for kind in kinds
    }
    attacks: list[dict[str, object]] = []
    for kind in kinds:
        different, by_other = differ(kind, found)
        *held, trickle = (cell.strip("*") for cell in parts[kind]["cells"])
        attacks.append({
            "server": kind, **dict(zip(HELD, held, strict=True)), "trickle": trickle,
            "accepted": accepted_badly(found[kind], odd), "differ": different,
            "differs_with": ", ".join(f"{name} {count}" for name, count in by_other.items()),
            "lost": lost(kind, found),
        })  # fmt: skip
    per_s = parts[LOADS_PART]["per_s"]
    return attacks, [{"server": kind, **spread("echoes_per_s", values, ".0f")} for kind, values in per_s.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--odd", type=int, default=2000)
    parser.add_argument("--parts", help="measure these alone, with ; between them, and keep them")
    parser.add_argument("--write", action="store_true", help=f"{SERVERS.writes}, with loads")
    asked = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed; try `apt-get install wrk nginx`")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    install()
    kinds = [kind for kind in KINDS if "nginx" not in kind or shutil.which("nginx")]
    chosen = [*kinds, LOADS_PART] if asked.parts is None else [part for part in asked.parts.split(";") if part]
    if unknown := set(chosen) - {*kinds, LOADS_PART}:
        raise SystemExit(f"no part {', '.join(unknown)}; there are {'; '.join([*kinds, LOADS_PART])}")
    KEPT.mkdir(exist_ok=True)
    for name in chosen:
        loads = name == LOADS_PART
        part = loads_part(kinds, asked.rounds, asked.seconds) if loads else attack_part(name, asked.odd)
        _file(name).write_text(json.dumps(part))
    if chosen and asked.parts is not None:
        return
    if missing := [name for name in [*kinds, LOADS_PART] if not _file(name).exists()]:
        raise SystemExit(f"not measured yet: {'; '.join(missing)}")
    attacks, loads = rows_of({name: json.loads(_file(name).read_text()) for name in [*kinds, LOADS_PART]})
    print(SERVERS.printed(attacks), LOADS.printed(loads), sep="\n\n")
    if asked.write:
        SERVERS.store(attacks, RunFacts.now())
        LOADS.store(loads, RunFacts.now())


def _file(part: str) -> Path:
    return KEPT / f"{part.replace(' ', '_')}.json"


if __name__ == "__main__":
    main()
