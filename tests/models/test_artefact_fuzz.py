"""Two thousand changed files: each is refused or gives a model, and nothing else happens."""

from __future__ import annotations

import contextlib
import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.stored_kinds import KINDS, stored
from tests.models.synthetic_ops import make_ops, measure_all
from tests.mutation import changed_bytes
from threadcast.core import Machine
from threadcast.core.errors import ArtefactError, ThreadcastError
from threadcast.models.registry_of_kinds import create

pytestmark = pytest.mark.system

TOKENS = (b"\x00", b"\xff" * 8, b"NaN", b"1e999", b"-1", b"[[", b"9" * 400, b"null", b"cos\nsystem\n(S'touch x'\ntR.")


def changed(data: bytes, rng: random.Random) -> bytes:
    """One to three places replaced, cut out, doubled, cut off, or given something else."""
    return changed_bytes(data, rng, TOKENS, places=3, most=64)


def changed_inside(data: bytes, rng: random.Random) -> bytes:
    """An entry of an archive changed, and the archive made sound again; what is no archive is changed itself."""
    if data[:2] != b"PK":
        return changed(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = rng.choice(list(entries))
    entries[name] = changed(entries[name], rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, entry in entries.items():
            archive.writestr(name, entry)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore")  # of models that were changed and loaded, about their numbers
@pytest.mark.parametrize("change", [changed, changed_inside])
def test_a_changed_file_is_refused_or_gives_a_model(
    change: Callable[[bytes, random.Random], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(11)
    machine = Machine.uniform("two", 2)
    op = make_ops(1)[0]
    observed = measure_all([op], machine=machine)
    refused = 0
    for _ in range(1000):
        kind = rng.choice(list(KINDS))
        files = stored(kind)
        name = rng.choice(list(files))
        made = create(kind)
        try:
            made.from_files({**files, name: change(files[name], rng)})
        except ArtefactError:
            refused += 1
            continue
        with contextlib.suppress(ThreadcastError, ValueError):
            made.predict(op, observed, machine.cases(), machine=machine)
    assert refused > 500
    assert list(tmp_path.iterdir()) == []
