"""`threadcast serve`: the prediction service on this machine."""

from __future__ import annotations

import json

import click

from threadcast.cli.options import common, setting
from threadcast.cli.output import Output
from threadcast.core.settings import Settings


@click.command()
@setting("service.host", "--host")
@setting("service.port", "--port")
@setting("store", "--store")
@setting("models", "--models")
@setting("service.model", "--model")
@setting("service.workers", "--workers")
@setting("service.threads", "--threads")
@click.option("--allow-public", is_flag=True, help="Listen on addresses that other machines can reach.")
@common
def command(output: Output, settings: Settings, allow_public: bool) -> None:
    """Serve predictions and plans over HTTP until SIGTERM or Ctrl-C.

    Prints the URL once predictions can be made. The service asks nobody who they are, so by default it listens
    where only this machine can reach it.
    """
    from threadcast.service.server import listen, serve
    from threadcast.service.settings import ServiceSettings

    def ready(url: str) -> None:
        click.echo(json.dumps({"url": url}) if output.as_json else f"threadcast listens on {url}")

    listener = listen(settings["service.host"], settings["service.port"], allow_public=allow_public)
    code = serve(
        ServiceSettings.from_settings(settings), listener, ready=ready,
        workers=settings["service.workers"], threads=settings["service.threads"],
    )  # fmt: skip
    if code:
        raise SystemExit(code)
