"""State that the parts of one process share: the cores that it may use, and the steps that its models make.

`attach` finds here the steps of the process's optimised models, and these find here the cores that an arbiter gives.
Either may be called first, and neither imports the other. `this_process()` returns the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from threadcast.threads.process_cores import ProcessCores
from threadcast.threads.step_counter import StepCounter


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The cores and the step counter of one process."""

    cores: ProcessCores = field(default_factory=ProcessCores)
    steps: StepCounter = field(default_factory=StepCounter)


_THIS = ProcessState()


def this_process() -> ProcessState:
    """The state of the process that calls; always the same object."""
    return _THIS
