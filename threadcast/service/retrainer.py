"""Decides when to retrain the model of an alias, trains a candidate and moves the alias to it if it is better.

The alias moves only if the candidate is better on ops that it has not learned from (`models.retraining`) and is not
worse on the golden set (`models.golden_set`). Services notice this move as they notice every move of an alias.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache

from threadcast.core import Measurement
from threadcast.core.errors import ArtefactError, ThreadcastError
from threadcast.core.holding import all_that_holds
from threadcast.core.settings_table import STEPS
from threadcast.models.drift import Place, drifts, ratios_by_place
from threadcast.models.golden_set import WHOLE, GoldenSet, golden_rows, lowered, read_golden_set, write_golden_set
from threadcast.models.measured import MeasuredOp, group
from threadcast.models.registry import ModelRegistry
from threadcast.models.retraining import Verdict, compete_on, held_out
from threadcast.service.retraining_metrics import RetrainingMetrics
from threadcast.service.retraining_state import read_trained_to, write_trained_to
from threadcast.store import Store

MIN_RATIOS = 20
"""Fewest new measurements of a machine, or of a kind on it, from which drift is computed."""

KEPT_NEW = 40
"""Newest measurements of each kind on each machine that drift is computed from."""

ALIAS_ATTEMPTS = 6
"""How often an alias is to be set while another process keeps the registry's lock, 10 s each time."""

OPS_AT_ONCE = 200
"""Ops whose measurements of all times are in memory at once; of each op only what holds is kept."""

_log = logging.getLogger("threadcast.retraining")


@dataclass(slots=True)
class Retrainer:
    """Decides when to retrain the model of `alias`, and retrains it.

    It does so `every_s` seconds after the last training, and where measured times of a machine, or of a kind of op on
    it, are off the forecasts by the factor `drift_limit`; 0 turns either off.
    """

    store: Store
    registry: ModelRegistry
    alias: str
    every_s: float
    drift_limit: float
    trained_s: float
    """Time of the last training in seconds, on the clock of `step`."""
    train_steps: int = STEPS
    """Runs of each op over which measuring must pay off (`models.judgement.Row.cost`)."""
    holds: Callable[[], bool] = lambda: True
    """Whether this process is still the only one that retrains; asked right before the alias moves."""
    progress: Callable[[], None] = lambda: None
    """Called whenever a part of the work is done, so that a process that hangs can be told from one that works."""
    metrics: RetrainingMetrics = field(default_factory=lambda: RetrainingMetrics("champion"))
    trained_to: int = field(init=False)
    """`Store.last_measurement` at the last training; kept on the disk, for a process that takes over."""
    looked_to: int = field(init=False)
    _new: dict[Place, deque[Measurement]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        last = self.store.last_measurement()
        known = read_trained_to(self.registry.root, self.alias, self.store.name)
        self.trained_to = self.looked_to = last if known is None else min(known, last)
        if known is None:
            write_trained_to(self.registry.root, self.alias, self.store.name, last)

    def step(self, now_s: float) -> str | None:
        """Retrain if it is time and there are new measurements; return the alias's new version, None if it stays.

        `now_s` is the present time in seconds, on any clock that only grows. After an error it is tried again when
        there are newer measurements.
        """
        last = self.store.last_measurement()
        if last == self.trained_to or not (self._is_time(now_s) or self._drifts(last)):
            return None
        self.trained_s = now_s
        try:
            return self.retrain()
        finally:
            self._remember(last)

    def retrain(self) -> str | None:
        """Train a candidate; if it is better, register it, move the alias to it and return its version, else None."""
        started_s, outcome = time.perf_counter(), "failed"
        try:
            promoted = self._retrain()
            outcome = "kept" if promoted is None else "promoted"
            return promoted
        finally:
            self.metrics.runs.labels(self.alias, outcome).inc()
            self.metrics.seconds.labels(self.alias).observe(time.perf_counter() - started_s)

    def _retrain(self) -> str | None:
        version = self.registry.resolve(self.alias)
        champion = self.registry.load(version)
        entries = tuple(stored_ops(self.store, self.progress))
        verdict = compete_on(champion, entries, steps=self.train_steps)
        self.progress()
        rows = golden_rows(champion, verdict.candidate, self._golden(entries))
        self.progress()
        if (accuracy := rows[WHOLE][0].accuracy) is not None:
            self.metrics.golden.labels(self.alias).set(accuracy)
        worse = lowered(rows)
        said = "no_better" if not verdict.better else "lowers_golden" if worse else "better"
        self.metrics.candidates.labels(self.alias, said).inc()
        if not verdict.better:
            _log.info("%s stays %s: the candidate is no better on held-out ops", self.alias, version)
            return None
        if worse:
            parts = ", ".join(name or "the whole" for name in worse)
            _log.warning("%s stays %s: the candidate is worse on the golden set: %s", self.alias, version, parts)
            return None
        return self._promote(version, verdict, entries)

    def _promote(self, version: str, verdict: Verdict, entries: tuple[MeasuredOp, ...]) -> str | None:
        origin = {
            "machines": sorted({entry.machine.fingerprint for entry in entries}), "ops": verdict.learned_ops,
            "measurements": sum(len(entry.by_case) for entry in entries), "networks": [], "retrained_from": version,
        }  # fmt: skip
        metrics = {"held out": verdict.candidate_row.to_json()}
        better = self.registry.save(verdict.candidate, trained_on=origin, metrics=metrics)
        if self.registry.resolve(self.alias) != version or not self.holds():
            _log.info("%s was moved meanwhile, or another service retrains it; it stays without %s", self.alias, better)
            return None
        for attempt in range(ALIAS_ATTEMPTS):
            try:
                self.registry.set_alias(self.alias, better, by="retraining")
                break
            except ArtefactError:  # another process keeps the registry's lock
                if attempt + 1 == ALIAS_ATTEMPTS or not self.holds():
                    raise
                self.progress()
        _log.info("%s is %s, in place of %s", self.alias, better, version)
        return better

    def _golden(self, entries: tuple[MeasuredOp, ...]) -> GoldenSet:
        """The set to compare by: what was in it before this run, with the times that hold now. It takes in new ops."""
        path = self.registry.root / "golden" / f"{self.alias}.json"
        before, judging = read_golden_set(path), held_out(entries)
        taken_in = before.renewed(judging)
        write_golden_set(path, taken_in)
        known = before.renewed(judging, take_in=False) if before.entries else taken_in
        return known.without_stale(entries)

    def _remember(self, last: int) -> None:
        self.trained_to = self.looked_to = last
        self._new.clear()
        write_trained_to(self.registry.root, self.alias, self.store.name, last)

    def _is_time(self, now_s: float) -> bool:
        return 0 < self.every_s <= now_s - self.trained_s

    def _drifts(self, last: int) -> bool:
        if not self.drift_limit or last == self.looked_to:
            return False
        for measured in self.store.in_batches(since=self.looked_to):
            for m in measured:
                self._new.setdefault((m.machine.fingerprint, m.op.kind), deque(maxlen=KEPT_NEW)).append(m)
            self.progress()
        self.looked_to = last
        newest = [m for of_place in self._new.values() for m in of_place]
        found = drifts(ratios_by_place(self.registry.load(self.alias), newest), least=MIN_RATIOS)
        for (machine, kind), factor in found.items():
            self.metrics.drift.labels(machine, kind).set(factor)
        off = {place: factor for place, factor in found.items() if factor >= self.drift_limit}
        for (machine, kind), factor in off.items():
            _log.info("times of %s on %s are off by a factor of %.2f", kind or "all kinds", machine, factor)
        return bool(off)


def stored_ops(store: Store, progress: Callable[[], None] = lambda: None) -> Iterator[MeasuredOp]:
    """What holds of each op on each machine, from the measurements of a few ops at a time; `progress` after each."""
    keys = [op.key for op in store.ops()]
    changes = cache(store.changes)
    for machine in store.machines():
        changes(machine.fingerprint)  # first: what is read before a change and judged by it would seem out of date
    for start in range(0, len(keys), OPS_AT_ONCE):
        measured = store.measurements(keys=keys[start : start + OPS_AT_ONCE])
        yield from group(all_that_holds(measured, changes))
        progress()


def explain(error: ThreadcastError) -> None:
    """Log why a run failed."""
    _log.warning("no retraining this time: %s", error)
