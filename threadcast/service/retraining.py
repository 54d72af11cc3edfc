"""Retrains the default model in a process beside the service, and watches that process.

    server ── watching process ── retraining process
              (this module)       (`main`: a `Retrainer`, while it holds the store's lock)

The watching process starts the other one again whenever it ends, after longer and longer pauses, and kills it where it
hangs: it writes to a pipe whenever it gets on. Both end with the server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn

from threadcast.core.errors import ConfigError, ThreadcastError
from threadcast.core.parent_process import end_with_parent
from threadcast.service import logs
from threadcast.service.settings import ServiceSettings
from threadcast.threads.openmp import child_environment

CHECK_S = 1.0
"""Seconds between two checks of the store, and of whether its lock is free."""

NICE = 10
"""Nice value of the training process (nice(2)): answering requests goes first."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""Pauses before the first restart and between many, in seconds; each pause is twice the one before it."""

END_S = 2.0
"""Seconds that the training process has to close its store when the service ends; then it is killed."""

STEADY_S = 600.0
"""Seconds after which a process counts as one that works: the next pause is the first one again."""

_log = logging.getLogger("threadcast.retraining")


def asked(settings: ServiceSettings) -> bool:
    """Whether the settings ask for retraining."""
    return bool(settings.retrain_every_s or settings.retrain_drift)


def require_alias(settings: ServiceSettings) -> None:
    """Raise ConfigError where the model is one version, which cannot be retrained."""
    if "@" in settings.model:
        raise ConfigError(f"service.model={settings.model!r} is one version; retraining moves an alias: name one")


def pause_s(ends: int) -> float:
    """Seconds to wait before the process is started again that has ended `ends` times in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** (ends - 1), LONGEST_PAUSE_S)


@contextlib.contextmanager
def beside(settings: ServiceSettings) -> Iterator[None]:
    """Run a retraining process during the block, if the settings ask for it; ConfigError where the model is fixed."""
    if not asked(settings):
        yield
        return
    require_alias(settings)
    wanted = {
        "store": str(settings.store), "models": str(settings.models), "alias": settings.model,
        "every_s": settings.retrain_every_s, "drift": settings.retrain_drift, "train_steps": settings.train_steps,
        "log_format": settings.log_format, "stall_s": settings.retrain_stall_s,
    }  # fmt: skip
    environment = child_environment(OMP_NUM_THREADS="1")
    parent = os.getpid()
    process = subprocess.Popen(_command("watch", wanted), stdin=subprocess.DEVNULL, env=environment)
    try:
        yield
    finally:
        if os.getpid() == parent:  # workers are forked within the block
            process.terminate()
            process.wait()


def watch(wanted: dict[str, str]) -> NoReturn:
    """Start the retraining process, again and again, until SIGTERM; then end it and this one."""
    from threadcast.service.retraining_metrics import RetrainingMetrics

    metrics = RetrainingMetrics(wanted["alias"])
    signal.signal(signal.SIGTERM, _exit)
    ends = 0
    while True:
        started_s = time.monotonic()
        try:
            process, beats = _started(wanted)
        except OSError as error:  # no memory, or too many processes
            why = f"cannot be started: {error.strerror}"
        else:
            try:
                if not _ends(beats, float(wanted["stall_s"])):
                    _log.error("the retraining process made no progress for %s s and is killed", wanted["stall_s"])
                    process.kill()
                code = process.wait()
            finally:
                _end(process)
                os.close(beats)
            _forget(process.pid)
            why = f"ended with signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        ends = 1 if time.monotonic() - started_s >= STEADY_S else ends + 1
        metrics.restarts.labels(wanted["alias"]).inc()
        _log.error("the retraining process %s; it is started again in %.0f s", why, pause_s(ends))
        time.sleep(pause_s(ends))


def _started(wanted: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """A new retraining process, and the end of the pipe to read its signs of progress from; OSError where there can be
    none now."""
    beats, beating = os.pipe()
    try:
        command = _command("retrain", {**wanted, "beats": beating})
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[beating]), beats
    except OSError:
        os.close(beats)
        raise
    finally:
        os.close(beating)


def _ends(beats: int, stall_s: float) -> bool:
    """Wait for the end of the process that writes to this pipe; False where it writes nothing for `stall_s` seconds."""
    while select.select([beats], [], [], stall_s)[0]:
        if not os.read(beats, 4096):
            return True
    return False


def main(wanted: dict[str, str]) -> NoReturn:
    """Retrain whenever `Retrainer.step` finds that it is time and this process holds the store's lock."""
    from threadcast.models.registry import ModelRegistry
    from threadcast.service.retrainer import Retrainer, explain
    from threadcast.service.retraining_metrics import RetrainingMetrics
    from threadcast.store import Store
    from threadcast.store.retrainer_lock import RetrainerLock

    signal.signal(signal.SIGTERM, _exit)  # closes the store, so that all that is in its -wal file is in its database
    os.nice(NICE)
    beating = int(wanted["beats"])
    os.set_inheritable(beating, False)
    os.set_blocking(beating, False)

    def progress() -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of signs that were not read yet
            os.write(beating, b".")

    metrics = RetrainingMetrics(wanted["alias"])
    metrics.start()
    registry, retrainer = ModelRegistry(Path(wanted["models"])), None
    with Store.open(wanted["store"]) as store, RetrainerLock(wanted["store"]) as lock:
        while True:
            progress()
            try:
                holds = lock.take()
                metrics.holds.labels(wanted["alias"]).set(holds)
                if not holds:
                    retrainer = None  # another one trains: what was new to this one is not any more
                elif retrainer is None:
                    retrainer = Retrainer(
                        store, registry, wanted["alias"], float(wanted["every_s"]), float(wanted["drift"]),
                        time.monotonic(), int(wanted["train_steps"]), lock.take, progress, metrics,
                    )  # fmt: skip
                else:
                    retrainer.step(time.monotonic())
            except ThreadcastError as error:
                explain(error)
            time.sleep(CHECK_S)


def _command(role: str, wanted: Mapping[str, object]) -> list[str]:
    return [
        sys.executable, "-P", "-m", "threadcast.service.retraining", role, str(os.getpid()), json.dumps(wanted)
    ]  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process by SIGTERM, or by SIGKILL where it takes longer than `END_S`; nothing where it has ended."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:  # it is stopped, or within compiled code
        process.kill()
        process.wait()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # systemd and the parent both send it: one must not end the closing
    sys.exit(0)


def _forget(pid: int) -> None:
    """Remove the gauges of a process that has ended."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which ends this process
    asked_for = json.loads(sys.argv[3])
    logs.configure(asked_for["log_format"], level=logging.INFO)
    {"watch": watch, "retrain": main}[sys.argv[1]](asked_for)
