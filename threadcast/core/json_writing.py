"""Writing a JSON document whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path | str, document: Any) -> None:
    """Write `document` to `path`; a reader sees the old file or all of the new one. OSError when it cannot.

    Not-a-number and infinity are refused with ValueError: other programs could not read them.
    """
    text = json.dumps(document, allow_nan=False)
    target = Path(path).resolve()
    if target.exists() and not target.is_file():  # a pipe or a terminal cannot be replaced
        target.write_text(text, encoding="utf-8")
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(target.parent))
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the draft's name says nothing to whoever reads this
        raise
    finally:
        draft.unlink(missing_ok=True)
