"""Measures what plain PyTorch gains by settings alone: malloc that keeps freed memory, memory format, thread count.

Every setting has a process of its own, because a change to malloc cannot be undone. The processes take turns, so that
a machine that becomes faster or slower affects all settings alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Self

from threadcast.cli.plain.process import PlainProcess, Setting
from threadcast.core import usable_cores
from threadcast.core.errors import InvalidInput, MeasurementError
from threadcast.core.gains import Gain, gain_of
from threadcast.threads.memory import KEEPING, free_bytes

if TYPE_CHECKING:
    from threadcast.capture.workloads import Mode, OptimizerName

STEPS = 3
"""Timed steps in a turn. A step before them is not timed: it finds caches and thread teams cold."""

ROUNDS = 10
"""Fewest rounds; in a round each process has one turn. Of 10 ratios the 95 % interval of the median leaves out the
lowest and the highest."""

ADVISED_GAIN = 1.02
"""Gain (a ratio of times) that the interval's lower end must reach; less is not worth a line of advice."""

TIMEOUT_S = 300.0
"""Longest wait in seconds for the start of a process or for one of its turns."""

_KEEPING = " ".join(f"{name}={value}" for name, value in KEEPING.items())
_MALLOC = f"start Python with {_KEEPING} in its environment: freed memory stays in the process"
_LAYOUT = (
    "model.to(memory_format=torch.channels_last) once, x = x.to(memory_format=torch.channels_last) for input images"
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lower (`low`) and upper (`high`) quartile of values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Self:
        """Return median and quartiles of two or more values."""
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True, slots=True)
class TimedSetting:
    """Seconds of a step at a setting, and its gain over the current setting, from the medians of neighbouring turns."""

    setting: Setting
    seconds: Spread
    gain: Gain
    faults: float
    """Page faults in one step, on average."""
    peak_bytes: int
    """The most memory that the process has used so far, in bytes."""
    gains: bool
    """Whether the setting is faster by more than noise."""


@dataclass(frozen=True, slots=True)
class PlainGains:
    """Times and gains of a network's step. `timed` starts with the current setting; `failed` maps others to errors."""

    network: str
    size: str
    batch: int
    mode: Mode
    threads: int
    """Threads that PyTorch uses by default."""
    rounds: int
    timed: tuple[TimedSetting, ...]
    failed: Mapping[str, str]


def measure_plain_gains(
    network: str,
    *,
    size: str | None = None,
    batch: int | None = None,
    mode: Mode | None = None,
    optimizer: OptimizerName = "sgd",
    rounds: int = ROUNDS,
    timeout_s: float = TIMEOUT_S,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> PlainGains:
    """Time the step of `network` (a text for `load_spec`) in plain PyTorch, at the current setting and at others.

    The others are: freed memory kept; channels last, and both together (for networks that convolve images); 1 thread
    and as many threads as there are usable cores, where PyTorch's default is another number. The network is in memory
    once for each setting. `progress(done, total)` is called after each turn.

    A setting at which the network raises is listed in `failed`. NetworkError where the network raises at the setting
    of now (or that error itself where it is one of threadcast's). MeasurementError where a process ends early or does
    not answer within `timeout_s`, or where memory is too small for all processes. InvalidInput for fewer than `ROUNDS`
    rounds. All processes have ended when this returns or raises.
    """
    if rounds < ROUNDS:
        raise InvalidInput(f"rounds={rounds}: telling a gain from noise takes {ROUNDS} or more")
    request = {"network": network, "size": size, "batch": batch, "mode": mode, "optimizer": optimizer}
    with ExitStack() as ends:

        def start(setting: Setting) -> PlainProcess:
            return ends.enter_context(PlainProcess(setting, request, timeout_s))

        usual = start(Setting("as run now"))
        usual.get_ready()
        info = usual.description
        others = list(_others(info["threads"], images=info["images"]))
        _refuse_too_large(info["needs_bytes"], len(others))
        processes = [usual, *map(start, others)]
        for process in processes[1:]:
            process.get_ready()
        _take_turns(processes, rounds, progress)
    failed = {p.setting.name: p.failure for p in processes if p.failure is not None}
    timed = tuple(_summary(p, usual) for p in processes if p.failure is None)
    described = {name: info[name] for name in ("size", "batch", "mode", "threads")}
    return PlainGains(network, **described, rounds=len(usual.turns), timed=timed, failed=failed)


def _others(threads: int, *, images: bool) -> Iterator[Setting]:
    yield Setting("memory kept", _MALLOC, KEEPING)
    if images:
        yield Setting("channels last", _LAYOUT, channels_last=True)
        yield Setting("both", f"{_LAYOUT}; {_MALLOC}", KEEPING, channels_last=True)
    for count in sorted({1, usable_cores().cores} - {threads}):
        name = f"{count} thread{'s' if count > 1 else ''}"
        yield Setting(name, f"torch.set_num_threads({count}) or OMP_NUM_THREADS={count}", threads=count)


def _take_turns(processes: list[PlainProcess], rounds: int, progress: Callable[[int, int], None]) -> None:
    for done in range(rounds):
        for i, process in enumerate(processes):
            process.take_turn(STEPS)
            progress(done * len(processes) + i + 1, rounds * len(processes))


def _summary(process: PlainProcess, usual: PlainProcess) -> TimedSetting:
    seconds = [s for turn in process.turns for s in turn["seconds"]]
    gain = gain_of(*([median(turn["seconds"]) for turn in one.turns] for one in (usual, process)))
    faults = _faults(process)
    memory_alone = process.setting.advice == _MALLOC  # gains by page faults or not at all
    gains = gain.low >= ADVISED_GAIN and (faults < _faults(usual) or not memory_alone)
    return TimedSetting(process.setting, Spread.of(seconds), gain, faults, process.turns[-1]["peak_bytes"], gains)


def _faults(process: PlainProcess) -> float:
    """Mean page faults of one step."""
    faults: int = sum(turn["faults"] for turn in process.turns)
    return faults / (STEPS * len(process.turns))


def _refuse_too_large(needs_bytes: int, more: int) -> None:
    """Raise MeasurementError where `more` further processes that need `needs_bytes` each do not fit into memory."""
    available_bytes = free_bytes()
    if available_bytes is not None and more * needs_bytes > available_bytes:
        raise MeasurementError(
            f"{more} more processes with {needs_bytes / 2**30:.1f} GiB each do not fit into the "
            f"{available_bytes / 2**30:.1f} GiB of memory that are free; choose a smaller size or batch"
        )
