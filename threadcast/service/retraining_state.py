"""Up to which measurement an alias was retrained, on the disk: for the next process that retrains it."""

from __future__ import annotations

import json
from pathlib import Path

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import FormatError
from threadcast.core.json_reading import check_schema, member, parse

SCHEMA = "threadcast.retraining/1"


def read_trained_to(root: Path, alias: str, store: str) -> int | None:
    """`Store.last_measurement` at the last training of `alias` from the store of this name; None where it is not known.

    `root` is the directory of the model registry. A damaged file counts as none.
    """
    try:
        document = parse(_path(root, alias).read_bytes(), what="the state of retraining")
        check_schema(document, SCHEMA)
        to = member(document, "trained_to", int)
        return to if member(document, "store", str) == store else None
    except (OSError, FormatError):
        return None


def write_trained_to(root: Path, alias: str, store: str, to: int) -> None:
    """Remember what `read_trained_to` returns from now on."""
    path = _path(root, alias)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(json.dumps({"schema": SCHEMA, "store": store, "trained_to": to}) + "\n", encoding="utf-8")


def _path(root: Path, alias: str) -> Path:
    return root / "retraining" / f"{alias}.json"
