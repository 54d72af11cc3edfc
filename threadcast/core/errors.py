"""Every error that threadcast raises on purpose.

ThreadcastError
├── InvalidInput (ValueError)          a value outside what is allowed
│   ├── FormatError                    a file or body that is not what its schema says
│   ├── ConfigError                    an unknown or ill-typed setting
│   └── PlanError                      a graph or core count that no plan can be made for
├── NotFound (LookupError)             no such network, model, op, machine or version
├── NetworkError (RuntimeError)        a user's own network code that cannot be imported or raises
├── CaptureError (RuntimeError)        a callable that cannot be turned into an op graph
├── MeasurementError (RuntimeError)    an op could not be timed
├── CounterUnavailable (OSError)       a hardware or software counter that cannot be opened
├── ModelError (ValueError)            too little or unusable data to learn from
│   └── FeatureError                   an op that lacks what describes its kind
├── StoreError (RuntimeError)          the measurement store cannot be read or written
├── ArtefactError (RuntimeError)       a model artefact that must not or cannot be loaded
│   └── UnknownKind                   of a kind of model that this version does not have
├── BundleError (RuntimeError)         a bundle that must not or cannot be loaded, or nothing to make one of
├── IllegalLaunch (RuntimeError)       a policy launched an op that must not start now
├── ExecutionError (RuntimeError)      the engine could not run a plan
│   └── EngineClosed                   the engine was closed before
├── WrongResult (RuntimeError)         an optimised step did not give what PyTorch gives
├── NotCopyable (TypeError)            an optimised function or step, to be copied or pickled
└── ServiceError (RuntimeError)        the prediction service gave no usable answer
    ├── ServiceUnavailable (ConnectionError)
    │   └── NotAsked                   no request was made
    ├── ServiceRefused                 the service answered with another status than 200
    └── DeadlineExceeded (TimeoutError)
"""


class ThreadcastError(Exception):
    """Root of all errors raised by threadcast on purpose."""


class InvalidInput(ThreadcastError, ValueError):
    """A value outside what is allowed; the message names the value, the allowed ones and the next step."""


class FormatError(InvalidInput):
    """A file or request body that is not what its schema says.

    `pointer` is a JSON pointer to the offending member ("" for the whole document).
    """

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class ConfigError(InvalidInput):
    """An unknown or ill-typed setting in a file, the environment or a flag."""


class PlanError(InvalidInput):
    """A graph, curve or core count for which no plan can be made."""


class NotFound(ThreadcastError, LookupError):
    """No such network, model, op, machine or version."""


class NetworkError(ThreadcastError, RuntimeError):
    """A user's own network code that cannot be imported or raises; the message contains the error of that code."""


class CaptureError(ThreadcastError, RuntimeError):
    """A callable that cannot be turned into an op graph; the message gives the reason."""


class MeasurementError(ThreadcastError, RuntimeError):
    """An op could not be timed."""


class CounterUnavailable(ThreadcastError, OSError):
    """A counter that this machine, kernel or permission level does not offer."""


class ModelError(ThreadcastError, ValueError):
    """Too little or unusable data to learn a performance model from."""


class FeatureError(ModelError):
    """An op that lacks a feature by which ops of its kind were learned, or has it under another name."""


class StoreError(ThreadcastError, RuntimeError):
    """The measurement store cannot be read or written; it has been left as it was."""


class NoStore(StoreError):
    """There is no store at the place that was named."""


class ArtefactError(ThreadcastError, RuntimeError):
    """A model artefact that is damaged, not written by threadcast, or holds something that must not be loaded."""


class UnknownKind(ArtefactError):
    """A whole artefact of a kind of model that this version does not have; the message says what to do."""


class BundleError(ThreadcastError, RuntimeError):
    """A bundle that must not or cannot be loaded; or there is nothing to make one of."""


class IllegalLaunch(ThreadcastError, RuntimeError):
    """A policy broke the rules of launching; the message describes the launch and what happened before.

    It launched an op that is not ready, launched one on cores where it does not fit, or launched nothing when it had
    to.
    """


class ExecutionError(ThreadcastError, RuntimeError):
    """The engine could not run a plan."""


class EngineClosed(ExecutionError):
    """The engine was closed: it runs no more steps, and its plan cannot be changed."""


class WrongResult(ThreadcastError, RuntimeError):
    """An optimised step did not give what PyTorch gives; the message names the first operator that differs."""


class NotCopyable(ThreadcastError, TypeError):
    """An optimised function or training step was to be copied or pickled; the message says what to copy instead."""


class ServiceError(ThreadcastError, RuntimeError):
    """The prediction service gave no usable answer."""


class ServiceUnavailable(ServiceError, ConnectionError):
    """The prediction service cannot be reached."""


class NotAsked(ServiceUnavailable):
    """No request was made: the service failed and is left alone for a while, or this process cannot make a request."""


class ServiceRefused(ServiceError):
    """The prediction service answered with another HTTP `status` than 200.

    `retry_after_s`: seconds after which the service wants to be asked again; None where it does not say.
    """

    def __init__(self, message: str, *, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class DeadlineExceeded(ServiceError, TimeoutError):
    """The prediction service did not answer within the caller's deadline."""


def in_one_line(error: BaseException) -> str:
    """The type and the first line of an error, as a part of a reason."""
    return f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"
