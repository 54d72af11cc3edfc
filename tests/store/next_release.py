"""A release after this one, whose schema differs: what opens a store then migrates it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from threadcast.store import database
from threadcast.store.schema import REVISIONS

NEXT = "next"
_SCRIPT = f"""
from alembic import op

revision = {NEXT!r}
down_revision = {REVISIONS[-1]!r}


def upgrade():
    op.execute("UPDATE measurements SET stored_s = 1.0")
"""


def become_next_release(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the code knows one more revision; its scripts lie in `folder`, which must not exist."""
    shutil.copytree(Path(database.__file__).parent / "migrations", folder)
    (folder / "versions" / "next.py").write_text(_SCRIPT)
    monkeypatch.setattr(database, "SCRIPTS", str(folder))
    monkeypatch.setattr(database, "REVISIONS", (*REVISIONS, NEXT))
