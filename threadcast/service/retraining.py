"""Retrains the default model in a process beside the service: on schedule, or when measurements drift.

The alias moves to a candidate only if the candidate is better on ops that it has not learned from
(`models.retraining`). Services notice this move as they notice every move of an alias.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from threadcast.core.errors import ConfigError, ThreadcastError
from threadcast.core.parent_process import end_with_parent
from threadcast.core.settings_table import STEPS
from threadcast.models.drift import drift, ratios
from threadcast.models.registry import ModelRegistry
from threadcast.models.retraining import compete
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

CHECK_S = 1.0
"""Seconds between two checks of the store."""

MIN_RATIOS = 20
"""Fewest new measurements from which drift is computed."""

NICE = 10
"""Nice value of the training process (nice(2)): answering requests goes first."""

_log = logging.getLogger("threadcast.retraining")


@dataclass(slots=True)
class Retrainer:
    """Decides when to retrain the model of `alias`, and retrains it.

    It does so `every_s` seconds after the last training, and where measured times are off the forecasts by the factor
    `drift_limit`; 0 turns either off.
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
    trained_to: int = field(init=False)
    """`Store.last_measurement` at the last training."""
    looked_to: int = field(init=False)

    def __post_init__(self) -> None:
        self.trained_to = self.looked_to = self.store.last_measurement()

    def step(self, now_s: float) -> str | None:
        """Retrain if it is time and there are new measurements; return the alias's new version, None if it stays.

        `now_s` is the present time in seconds, on any clock that only grows.
        """
        last = self.store.last_measurement()
        if last == self.trained_to or not (self._is_time(now_s) or self._drifts(last)):
            return None
        self.trained_s, self.trained_to = now_s, last
        return self.retrain()

    def retrain(self) -> str | None:
        """Train a candidate; if it is better, register it, move the alias to it and return its version, else None."""
        version = self.registry.resolve(self.alias)
        measured = self.store.measurements()
        verdict = compete(self.registry.load(version), measured, steps=self.train_steps)
        if not verdict.better:
            _log.info("%s stays %s: the candidate is no better on held-out ops", self.alias, version)
            return None
        origin = {
            "machines": sorted({m.machine.fingerprint for m in measured}), "ops": verdict.learned_ops,
            "measurements": len(measured), "networks": [], "retrained_from": version,
        }  # fmt: skip
        metrics = {"held out": verdict.candidate_row.to_json()}
        better = self.registry.save(verdict.candidate, trained_on=origin, metrics=metrics)
        if self.registry.resolve(self.alias) != version:
            _log.info("%s was moved meanwhile; %s stays without it", self.alias, better)
            return None
        self.registry.set_alias(self.alias, better, by="retraining")
        _log.info("%s is %s, in place of %s", self.alias, better, version)
        return better

    def _is_time(self, now_s: float) -> bool:
        return 0 < self.every_s <= now_s - self.trained_s

    def _drifts(self, last: int) -> bool:
        if not self.drift_limit or last == self.looked_to:
            return False
        self.looked_to = last
        new = self.store.measurements(since=self.trained_to)
        champion = self.registry.load(self.alias)
        found = ratios(champion, new[-MIN_RATIOS * 10 :], most_ops=MIN_RATIOS * 10)
        return len(found) >= MIN_RATIOS and drift(found) >= self.drift_limit


@contextlib.contextmanager
def beside(settings: ServiceSettings) -> Iterator[None]:
    """Run a retraining process during the block, if the settings ask for it; ConfigError where the model is fixed."""
    if not (settings.retrain_every_s or settings.retrain_drift):
        yield
        return
    if "@" in settings.model:
        raise ConfigError(f"service.model={settings.model!r} is one version; retraining moves an alias: name one")
    asked = {
        "store": str(settings.store), "models": str(settings.models), "alias": settings.model,
        "every_s": settings.retrain_every_s, "drift": settings.retrain_drift, "train_steps": settings.train_steps,
    }  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = os.getpid()
    command = [sys.executable, "-P", "-m", "threadcast.service.retraining", str(parent), json.dumps(asked)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield
    finally:
        if os.getpid() == parent:  # workers are forked within the block
            process.terminate()
            process.wait()


def main(asked: dict[str, str]) -> NoReturn:
    """Retrain whenever `Retrainer.step` finds that it is time; the process ends with the server."""
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which ends this process
    with Store.open(asked["store"]) as store:
        retrainer = Retrainer(
            store, ModelRegistry(Path(asked["models"])), asked["alias"], float(asked["every_s"]),
            float(asked["drift"]), time.monotonic(), int(asked["train_steps"]),
        )  # fmt: skip
        while True:
            try:
                retrainer.step(time.monotonic())
            except ThreadcastError as error:
                _log.warning("no retraining this time: %s", error)
            time.sleep(CHECK_S)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="threadcast: %(message)s")
    end_with_parent(int(sys.argv[1]))
    main(json.loads(sys.argv[2]))
