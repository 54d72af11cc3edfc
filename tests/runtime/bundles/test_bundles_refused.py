"""A bundle that is damaged, foreign or hostile is refused, with a reason, before anything is written."""

from __future__ import annotations

import errno
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.bundles.bundled_machine import files_below, fill, in_step, move_to
from threadcast.core import Machine
from threadcast.core.errors import BundleError
from threadcast.runtime.bundles import archive, exchange
from threadcast.runtime.bundles.archive import read_bundle, write_bundle
from threadcast.runtime.bundles.exchange import load, save
from threadcast.runtime.bundles.manifest import Fingerprint
from threadcast.runtime.bundles.measured import to_text
from threadcast.runtime.bundles.places import Places

Entries = dict[str, bytes]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound bundle."""
    places = move_to(tmp_path / "one", monkeypatch)
    fill(places)
    save(tmp_path / "bundle", places)
    return tmp_path / "bundle"


@pytest.fixture
def other(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Empty folders to load in."""
    return move_to(tmp_path / "other", monkeypatch)


def refused(path: Path, places: Places, match: str, **options: Any) -> None:
    """Check that the bundle is refused with this reason, and that nothing is written."""
    with pytest.raises(BundleError, match=match):
        load(path, places, **{"trust": True, **options})
    assert list(places.plans.parent.rglob("*")) == []


def rewritten(path: Path, change: Callable[[Entries, dict[str, Any]], None]) -> None:
    """Pack the bundle again, with entries and manifest changed."""
    with zipfile.ZipFile(path) as packed:
        entries = {name: packed.read(name) for name in packed.namelist()}
    manifest = json.loads(entries.pop("manifest.json"))
    change(entries, manifest)
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("manifest.json", json.dumps(manifest))
        for name, content in entries.items():
            packed.writestr(name, content)


def test_a_changed_byte_changes_nothing_or_is_refused(bundle: Path) -> None:
    """Some bytes of a zip, such as times, have no meaning here: then all contents must be what they were."""
    sound, expected = bundle.read_bytes(), read_bundle(bundle)
    outcomes = []
    for i in range(len(sound)):
        bundle.write_bytes(sound[:i] + bytes([sound[i] ^ 0x41]) + sound[i + 1 :])
        try:
            found = read_bundle(bundle)
        except BundleError:
            outcomes.append(True)
        else:
            outcomes.append(False)
            assert replace(found, sha256="") == replace(expected, sha256="")
            assert found.sha256 != expected.sha256
    assert sum(outcomes) > len(sound) / 2


def test_a_part_of_a_bundle_is_refused(bundle: Path, other: Places) -> None:
    sound = bundle.read_bytes()
    for size in range(0, len(sound), 97):
        bundle.write_bytes(sound[:size])
        refused(bundle, other, "damaged")


@pytest.mark.parametrize("name", ["machine", "torch", "torch_git", "python", "threadcast"])
def test_another_machine_or_version_is_refused_and_both_are_named(name: str, bundle: Path, other: Places) -> None:
    here = getattr(Fingerprint.here(other.machine), name)
    rewritten(bundle, lambda _, manifest: manifest["fingerprint"].update({name: "foreign 1.2"}))
    with pytest.raises(BundleError, match=r"does not fit here.* foreign 1.2, and here is") as raised:
        load(bundle, other)
    assert here in str(raised.value)
    assert files_below(other.plans.parent) == {}


@pytest.mark.parametrize(
    "path",
    [
        "../evil", "/etc/passwd", "plans/../../evil", "plans/evil.json", "plans/folder/", "curves/../x.csv",
        "code/x.so", "compiled/../x.so", "compiled/a/../../x.so", "compiled/a\\b/x.so", "compiled/a/x.py",
        "compiled/a/x.so\n", f"compiled/a/{'x' * 250}.so", f"ways/{'0' * 64}/../x.onnx",
    ],
)  # fmt: skip
def test_a_path_outside_the_known_ones_is_refused(path: str, bundle: Path, other: Places) -> None:
    rewritten(bundle, lambda entries, _: entries.update({path: b""}))
    refused(bundle, other, "no file of a bundle has the path")


def test_a_manifest_of_another_schema_is_refused(bundle: Path, other: Places) -> None:
    rewritten(bundle, lambda _, manifest: manifest.update(schema="threadcast.bundle/9"))
    refused(bundle, other, "threadcast.bundle/9")


def test_two_files_of_one_name_are_refused(bundle: Path, other: Places) -> None:
    with zipfile.ZipFile(bundle, "a") as packed, pytest.warns(UserWarning, match="Duplicate name"):
        packed.writestr("plans/backends", "{}")
    refused(bundle, other, "two files of the same name")


def test_a_zip_without_a_manifest_is_refused(tmp_path: Path, other: Places) -> None:
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as packed:
        packed.writestr("plans/backends", "{}")
    refused(tmp_path / "plain.zip", other, r"no manifest\.json")
    (tmp_path / "text").write_text("a text")
    refused(tmp_path / "text", other, "damaged")


@pytest.mark.parametrize("mode", [0o120777, 0o060600, 0o040700])
def test_an_entry_that_is_no_plain_file_is_refused(mode: int, bundle: Path, other: Places) -> None:
    entry = zipfile.ZipInfo(f"plans/{'f' * 32}.json")
    entry.external_attr = mode << 16
    with zipfile.ZipFile(bundle, "a") as packed:
        packed.writestr(entry, "/etc/passwd")
    refused(bundle, other, "a folder, a link or a device")


def test_a_bomb_is_refused_before_it_is_unpacked(bundle: Path, other: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(bundle, "a", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"plans/{'f' * 32}.json", bytes(2**22))
    monkeypatch.setattr(archive, "MOST_BYTES", 2**21)
    monkeypatch.setattr(archive, "_unpacked", None)
    refused(bundle, other, "unpacks to more")


def test_a_bomb_that_lies_about_its_size_is_unpacked_no_further(tmp_path: Path, other: Places) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("manifest.json", bytes(2**22))
    text = packed.getvalue()
    assert text.count(struct.pack("<L", 2**22)) == 2  # before the content and in the list of entries
    (tmp_path / "bomb").write_bytes(text.replace(struct.pack("<L", 2**22), struct.pack("<L", 10)))
    refused(tmp_path / "bomb", other, "damaged")


@pytest.mark.parametrize("said", [501, 1])
def test_a_list_of_too_many_files_is_refused_before_it_is_read(
    said: int, bundle: Path, other: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of files in the last record is none that counts: its list has as many bytes as it says."""
    with zipfile.ZipFile(bundle, "a") as packed:
        for number in range(500):
            packed.writestr(f"plans/{number:032x}.json", "")
    text = bundle.read_bytes()
    bundle.write_bytes(text[:-14] + struct.pack("<2H", said, said) + text[-10:])
    with zipfile.ZipFile(bundle) as packed:
        assert len(packed.infolist()) > 500
    monkeypatch.setattr(archive, "MOST_FILES", 50)
    monkeypatch.setattr(archive.zipfile, "ZipFile", None)
    refused(bundle, other, "more than 50 files")


def test_more_than_a_bundle_may_have_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 3)
    with pytest.raises(BundleError, match="more than a bundle may have"):
        write_bundle(tmp_path / "bundle", Fingerprint("a", "b", "c", "d", "e"), {"plans/backends": b"four"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{'a' * 32}.json", b"{"), (f"{'a' * 32}.json", b'{"layout": "odd"}'), (f"{'a' * 32}.layout", b"odd"),
        (f"{'a' * 32}.json", b"[" * 100_000), ("backends", b'{"schema": "other/1"}'), ("backends", b"\xff"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_read_is_refused(name: str, content: bytes, tmp_path: Path, other: Places) -> None:
    write_bundle(tmp_path / "poison", Fingerprint.here(other.machine), {f"plans/{name}": content})
    refused(tmp_path / "poison", other, "not a file that optimised steps can read")


def test_measurements_of_another_machine_or_kind_are_refused(tmp_path: Path, other: Places) -> None:
    foreign = in_step(Machine.uniform("foreign", 2), "mm", 1.0)
    for text in (to_text([foreign]), to_text([in_step(other.machine, "mm", 1.0, cache="warm")]), b"a,b\n1,2\n"):
        write_bundle(tmp_path / "poison", Fingerprint.here(other.machine), {"curves/measurements.csv": text})
        refused(tmp_path / "poison", other, "is not of a step|cannot be read")


def test_code_of_other_sources_is_refused_where_it_would_be_taken(bundle: Path, other: Places) -> None:
    elsewhere = replace(other, native=other.native.with_name("engine-of-tomorrow"))
    refused(bundle, elsewhere, "compiled from other sources.*engine-of-tomorrow")
    assert load(bundle, elsewhere).count("plan") == 5


def test_a_bundle_with_another_digest_than_expected_is_refused(bundle: Path, other: Places) -> None:
    refused(bundle, other, "has the SHA-256", sha256="0" * 64)
    assert load(bundle, other, sha256=read_bundle(bundle).sha256.upper()).count("plan") == 5


@pytest.mark.parametrize("whole", [0, 1, 4])
def test_a_full_disk_leaves_nothing(whole: int, bundle: Path, other: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = []

    @contextmanager
    def full(path: Path) -> Iterator[Path]:
        with archive.replacing(path) as draft:
            if len(drafts) == whole:
                raise OSError(errno.ENOSPC, "No space left on device", str(draft))
            drafts.append(draft)
            yield draft

    monkeypatch.setattr(exchange, "replacing", full)
    with pytest.raises(OSError, match="No space"):
        load(bundle, other, trust=True)
    assert files_below(other.plans.parent) == {}
    assert not (other.plans.parent / "store.db").exists()
