"""The option --service: what a command measures goes to a service, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from threadcast.cli.options import setting
from threadcast.cli.output import Output
from threadcast.core.errors import InvalidInput
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.fleet.outbox import Outbox, SendingInBackground
    from threadcast.store import Store

F = TypeVar("F", bound=Callable[..., Any])


def service_options(function: F) -> F:
    """Give a command --service, which it gets as `service`, and --key-file."""
    function = setting("predictor.key_file", "--key-file")(function)
    return click.option(
        "--service",
        metavar="URL",
        help="Also send the measurements of the machine, stored ones too, to this service, while they are made. What "
        "it did not get is sent by the same command again; the exit status is 1 then.",
    )(function)


@contextmanager
def sending(output: Output, url: str | None, settings: Settings, store: Store) -> Iterator[SendingInBackground | None]:
    """A context manager within which measurements are sent from the store to the service at `url`; None: nowhere.

    InvalidInput for a URL or a key that cannot be right, before anything is measured.
    """
    if url is None:
        yield None
        return
    from threadcast.core.secret import Secret
    from threadcast.fleet.outbox import Outbox, SendingInBackground
    from threadcast.prediction.bounded_request import BoundedClient
    from threadcast.prediction.service_client import ServiceClient

    key, file = settings["predictor.key"], settings["predictor.key_file"]
    if file is not None and key is not None:
        raise InvalidInput("both predictor.key and predictor.key_file are set; one of them is enough")
    http = BoundedClient(url, key=Secret.read(file) if file is not None else key)
    try:
        outbox = Outbox(store, ServiceClient(http), http.url)

        def warn(error: Exception) -> None:
            output.warn(f"{http.url} gets nothing now, measuring goes on: {error}")

        with SendingInBackground(outbox, on_problem=warn) as background:
            yield background
    finally:
        http.close()


def sent_document(outbox: Outbox) -> dict[str, Any]:
    """What was sent, for a command's result."""
    return {"service": outbox.url, "sent": outbox.sent, "refused": outbox.refused, "unsent": outbox.unsent()}


def warn_unsent(output: Output, background: SendingInBackground) -> bool:
    """Say what the service did not get, and why; returns whether it got everything."""
    outbox = background.outbox
    if outbox.refused:
        output.warn(f"{outbox.url} refused {outbox.refused} measurements, the last one because: {outbox.refusal}")
    if unsent := outbox.unsent():
        output.warn(
            f"{unsent} measurements are not at {outbox.url} yet: {background.problem}; they are stored, and the same "
            "command sends them"
        )
    return not unsent and not outbox.refused
