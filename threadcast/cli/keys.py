"""`threadcast keys`: the API keys of the service and their scopes."""

from __future__ import annotations

from pathlib import Path

import click

from threadcast.cli.options import common, setting
from threadcast.cli.output import Output, table
from threadcast.core.errors import ConfigError
from threadcast.core.settings import Settings


@click.group()
def command() -> None:
    """Create, list and remove the service's API keys."""


@command.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", type=click.Choice(["read", "ingest", "admin"]), multiple=True, default=("read",),
    show_default=True, help="What the key allows; may be repeated.",
)  # fmt: skip
@click.option("--rate-limit", help="A rate of its own, such as 600/minute or none, in place of service.rate_limit.")
@setting("service.keys", "--keys")
@common
def add(output: Output, settings: Settings, name: str, scopes: tuple[str, ...], rate_limit: str | None) -> None:
    """Create a key called NAME and print it; only its digest is stored.

    The scope read is for predictions, plans and pages, ingest for storing measurements, admin for everything. Running
    services accept the key at once.
    """
    from threadcast.service.keys import add_key

    token = add_key(_file(settings), name, scopes, rate_limit=rate_limit)
    output.result({"name": name, "scopes": sorted(scopes), "key": token}, token)


@command.command("list")
@setting("service.keys", "--keys")
@common
def list_(output: Output, settings: Settings) -> None:
    """List the keys: names, scopes, when they were created, and rates of their own."""
    from threadcast.service.keys import read_keys

    keys = read_keys(_file(settings))
    document = [
        {"name": key.name, "scopes": list(key.scopes), "created": key.created, "rate_limit": key.rate_limit}
        for key in keys
    ]
    rows = [(key.name, ", ".join(key.scopes), key.created, key.rate_limit or "as set") for key in keys]
    output.result({"keys": document}, table(("name", "scopes", "created", "rate limit"), rows) if rows else "no keys")


@command.command()
@click.argument("name")
@setting("service.keys", "--keys")
@common
def remove(output: Output, settings: Settings, name: str) -> None:
    """Remove the key called NAME; running services refuse it from the next request on."""
    from threadcast.service.keys import remove_key

    remove_key(_file(settings), name)
    output.result({"removed": name}, f"{name} is removed")


def _file(settings: Settings) -> Path:
    path: Path | None = settings["service.keys"]
    if path is None:
        raise ConfigError("name the file of the keys with --keys, or as the setting service.keys")
    return path
