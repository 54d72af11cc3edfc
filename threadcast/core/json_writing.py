"""Writing a JSON document whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from threadcast.core.atomic_file import replacing


def write_json(path: Path | str, document: Any) -> None:
    """Write `document` to `path`; a reader sees the old file or the whole new one. OSError when it cannot be written.

    Not-a-number and infinity are refused with ValueError: JSON has no such numbers, so other programs could not read
    them.
    """
    text = json.dumps(document, allow_nan=False)
    with replacing(Path(path)) as draft:
        draft.write_text(text, encoding="utf-8")
