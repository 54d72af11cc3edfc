"""`threadcast serve`: the prediction service on this machine."""

from __future__ import annotations

import json
from dataclasses import replace

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
@setting("service.keys", "--keys")
@setting("service.tls_cert", "--tls-cert")
@setting("service.tls_key", "--tls-key")
@setting("service.trusted_proxies", "--trusted-proxies")
@click.option("--allow-public", is_flag=True, help="Listen where other machines can reach it, without keys.")
@click.option("--check", is_flag=True, help="Only check settings, store, model, keys, TLS and address; serve nothing.")
@common
def command(output: Output, settings: Settings, allow_public: bool, check: bool) -> None:
    """Serve predictions and plans over HTTP until SIGTERM or Ctrl-C.

    Prints the URL once predictions can be made. Without keys (`threadcast keys add`) requests need no key, and the
    service can be reached from this machine only, unless --allow-public is given. With --check it says whether it could
    start, a line for each thing that was looked at; exit code 1 where it could not.
    """
    if check:
        _check(output, settings, allow_public=allow_public)
        return
    from threadcast.service.server import listen, serve
    from threadcast.service.settings import ServiceSettings

    def ready(url: str) -> None:
        click.echo(json.dumps({"url": url}) if output.as_json else f"threadcast listens on {url}")

    keyed = settings["service.keys"] is not None
    listener = listen(settings["service.host"], settings["service.port"], allow_public=allow_public, keys=keyed)
    local_only = not (keyed or allow_public)
    code = serve(
        replace(ServiceSettings.from_settings(settings), local_only=local_only), listener, ready=ready,
        workers=settings["service.workers"], threads=settings["service.threads"],
    )  # fmt: skip
    if code:
        raise SystemExit(code)


def _check(output: Output, settings: Settings, *, allow_public: bool) -> None:
    from threadcast.service import checks
    from threadcast.service.settings import ServiceSettings

    host, port = settings["service.host"], settings["service.port"]
    found = list(checks.check(ServiceSettings.from_settings(settings), host=host, port=port, allow_public=allow_public))
    document = [{"what": one.what, "ok": one.ok, "said": one.said} for one in found]
    output.result({"checks": document}, *(f"{'ok' if one.ok else 'FAILED':6} {one.what}: {one.said}" for one in found))
    if not all(one.ok for one in found):
        raise click.exceptions.Exit(1)
