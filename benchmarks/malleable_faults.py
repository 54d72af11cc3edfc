"""Kills parties of a shared machine at random, and holds what is left to account.

    python benchmarks/malleable_faults.py [--rounds 200] [--seed 0]

Processes come, are killed (`kill -9`), and so is the arbiter, which then starts again. Within a second of each event
the cores of the processes that are left must be disjoint and all that there are.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from statistics import median

from threadcast.core import read_machine

_MEMBER = "import threadcast; threadcast.attach(); print('ready', flush=True); input()"
_ARBITER = [sys.executable, "-c", "from threadcast.cli.main import main; main()", "arbiter"]
WITHIN_S = 1.0


class Parties:
    """The arbiter and the processes that run at this moment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self.cpus = {cpu for core in read_machine().cores for cpu in core.cpus}
        self.most = len(read_machine())
        self.members: list[subprocess.Popen[str]] = []
        self.arbiter: subprocess.Popen[str] | None = None

    def start_arbiter(self) -> None:
        self.arbiter = subprocess.Popen(
            _ARBITER, env=self._environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert self.arbiter.stderr is not None
        self.arbiter.stderr.readline()  # it listens

    def start_member(self) -> None:
        member = subprocess.Popen(
            [sys.executable, "-c", _MEMBER], env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert member.stdout is not None
        member.stdout.readline()
        self.members.append(member)

    def kill(self, party: subprocess.Popen[str]) -> None:
        party.kill()
        party.communicate()
        if party in self.members:
            self.members.remove(party)
        else:
            self.arbiter = None

    def masks(self) -> list[set[int]]:
        return [os.sched_getaffinity(member.pid) for member in self.members]

    def is_settled(self) -> bool:
        masks = self.masks()
        return not masks or (set().union(*masks) == self.cpus and sum(map(len, masks)) == len(self.cpus))

    def settle(self) -> float:
        """Seconds until no core is lost and none is used twice; RuntimeError where that takes too long."""
        began_s = time.monotonic()
        while not self.is_settled():
            if time.monotonic() > began_s + 10 * WITHIN_S:
                raise RuntimeError(f"cores are lost or used twice: {self.masks()}")
            time.sleep(0.005)
        return time.monotonic() - began_s

    def end(self) -> None:
        for party in [*self.members, *([self.arbiter] if self.arbiter else [])]:
            self.kill(party)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    settled: dict[str, list[float]] = {"a process came": [], "a process was killed": [], "the arbiter was killed": []}
    with tempfile.TemporaryDirectory(prefix="threadcast-") as folder:
        parties = Parties({**os.environ, "XDG_RUNTIME_DIR": folder})
        try:
            parties.start_arbiter()
            for _ in range(chosen.rounds):
                if rng.random() < 0.25:
                    assert parties.arbiter is not None
                    before = parties.masks()
                    parties.kill(parties.arbiter)
                    if parties.masks() != before:
                        raise RuntimeError("processes lost cores with their arbiter")
                    parties.start_arbiter()
                    what = "the arbiter was killed"
                elif parties.members and (len(parties.members) == parties.most or rng.random() < 0.4):
                    parties.kill(rng.choice(parties.members))
                    what = "a process was killed"
                else:
                    parties.start_member()
                    what = "a process came"
                settled[what].append(parties.settle())
        finally:
            parties.end()
    for what, seconds in settled.items():
        if not seconds:  # few rounds need not draw every kind of event
            print(f"{what}: not once")
            continue
        late = sum(one > WITHIN_S for one in seconds)
        print(f"{what}: {len(seconds)} times, settled in {median(seconds):.3f} s, at most {max(seconds):.3f} s, "
              f"{late} later than {WITHIN_S:g} s")  # fmt: skip


if __name__ == "__main__":
    main()
