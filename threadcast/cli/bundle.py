"""`threadcast bundle`: what optimised steps have learned and compiled, as one file for machines of the same kind."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.options import NewFile, common, setting
from threadcast.cli.output import Output, table
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.runtime.bundles.archive import Bundle

FOUND = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def command() -> None:
    """Save and load what optimised steps have learned and compiled on this machine."""


@command.command()
@click.argument("file", type=NewFile())
@click.option("--plans-only", is_flag=True, help="Save plans alone, without measurements and compiled code.")
@setting("store", "--store")
@common
def save(output: Output, settings: Settings, file: Path, plans_only: bool) -> None:
    """Save plans, measurements of operators in steps and compiled code of this machine to FILE.

    FILE loads on machines with the same fingerprint, versions of PyTorch, Python and threadcast. The SHA-256 that this
    prints tells whoever loads it that it is the same file.
    """
    from threadcast.runtime.bundles.exchange import save as save_bundle
    from threadcast.runtime.bundles.places import Places

    bundle = save_bundle(file, Places.of(settings), plans_only=plans_only)
    rows = _contents(bundle)
    document = {"file": str(file), "sha256": bundle.sha256, "bytes": file.stat().st_size, **_document(rows)}
    shown = f"{file}: {document['bytes']:,} bytes, SHA-256 {bundle.sha256}"
    output.result(document, _table(rows), shown)


@command.command()
@click.argument("file", type=FOUND)
@click.option("--trust", is_flag=True, help="Take compiled code too: you trust whoever made FILE to run code here.")
@click.option("--replace", is_flag=True, help="Replace files of this machine by those of FILE [default: they stay].")
@click.option("--sha256", metavar="HEX", help="The SHA-256 that FILE must have, as `save` printed it.")
@setting("store", "--store")
@common
def load(output: Output, settings: Settings, file: Path, trust: bool, replace: bool, sha256: str | None) -> None:
    """Add what is in FILE to what this machine knows; loading it again adds nothing.

    All of FILE is checked before anything is written: its fingerprint, sizes, hashes and every plan. Compiled code is
    left out without --trust, and then compiled again where it is needed.
    """
    from threadcast.runtime.bundles.exchange import load as load_bundle
    from threadcast.runtime.bundles.places import Places

    places = Places.of(settings)
    loaded = load_bundle(file, places, trust=trust, replace=replace, sha256=sha256)
    document: dict[str, Any] = {
        "file": str(file), "sha256": loaded.bundle.sha256, "plan_files": loaded.count("plan"),
        "compiled_files": loaded.count("compiled"), "measurements": loaded.measurements,
        "present": len(loaded.present), "left_out": list(loaded.untrusted),
    }  # fmt: skip
    if loaded.untrusted:
        output.note(
            f"{len(loaded.untrusted)} compiled files are left out, as they would run as code on this machine; "
            "--trust takes them if you trust whoever made the bundle"
        )
    if places.store is None and loaded.bundle.of("curves"):
        output.note("engine.feedback is off: the bundle's measurements are left out")
    output.result(
        document,
        f"{file}: {loaded.count('plan'):,} files of plans, {loaded.measurements:,} measurements and "
        f"{loaded.count('compiled'):,} compiled files are new here, {len(loaded.present):,} files were there before",
    )


@command.command()
@click.argument("file", type=FOUND)
@common
def show(output: Output, settings: Settings, file: Path) -> None:
    """Check FILE and show what it is for and what is in it, without loading it."""
    from threadcast.runtime.bundles.archive import read_bundle

    bundle = read_bundle(file)
    rows = _contents(bundle)
    shown = [f"{name}: {value}" for name, value in asdict(bundle.fingerprint).items()]
    shown += [f"created: {bundle.created}", f"SHA-256: {bundle.sha256}"]
    files = [(path, len(content)) for path, content in bundle.contents.items()]
    document = {
        "sha256": bundle.sha256, "fingerprint": asdict(bundle.fingerprint), "created": bundle.created,
        "files": [{"path": path, "bytes": size} for path, size in files], **_document(rows),
    }  # fmt: skip
    output.result(document, *shown, _table(rows), table(("path", "bytes"), files))


def _contents(bundle: Bundle) -> list[tuple[str, int, int]]:
    """What is in a bundle: name, number and bytes of the files that hold it."""
    from threadcast.runtime.bundles.manifest import CURVES
    from threadcast.runtime.bundles.measured import ops_in

    plans, compiled = bundle.of("plan"), bundle.of("compiled")
    return [
        ("plans", sum(path.endswith(".json") for path in plans), _bytes_of(bundle, plans)),
        ("operators", ops_in(bundle.contents.get(CURVES)), _bytes_of(bundle, bundle.of("curves"))),
        ("compiled files", len(compiled), _bytes_of(bundle, compiled)),
    ]


def _bytes_of(bundle: Bundle, paths: list[str]) -> int:
    return sum(len(bundle.contents[path]) for path in paths)


def _document(rows: list[tuple[str, int, int]]) -> dict[str, Any]:
    return {name.replace(" ", "_"): {"count": count, "bytes": size} for name, count, size in rows}


def _table(rows: list[tuple[str, int, int]]) -> Any:
    return table(("what", "number", "bytes unpacked"), rows)
