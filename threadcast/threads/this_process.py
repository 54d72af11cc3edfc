"""What the parts of one process share about it: the cores that it may use, and the steps that its models make.

`attach` finds here the optimised models of its process, and they find the cores that an arbiter gives. Both may come
first, and neither imports the other. `this_process` is the one way to it.
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
