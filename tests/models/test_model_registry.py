"""Versions that never change, aliases that move, and files that somebody has tampered with."""

import hashlib
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from threadcast.core.errors import ArtefactError, InvalidInput, NotFound
from threadcast.models import stored_files
from threadcast.models.hill_climb import HillClimb
from threadcast.models.registry import ModelRegistry
from threadcast.models.registry_of_kinds import create

ABOUT = {"trained_on": {"ops": 12}, "metrics": {"accuracy": 0.9}}
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def registry(tmp_path):
    return ModelRegistry(tmp_path / "models", now=lambda: NOON)


def version_directory(registry, version):
    return registry.root / "versions" / version


def rewrite_manifest(registry, version, change):
    path = version_directory(registry, version) / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("read", [1, 2], ids=["manifest", "model"])
def test_a_version_that_is_removed_while_it_is_loaded_is_not_found(registry, monkeypatch, read):
    version, _ = registry.save(HillClimb(), **ABOUT), registry.save(HillClimb(), **ABOUT)
    at_read(monkeypatch, read, lambda: registry.remove(version))
    with pytest.raises(NotFound, match=version):
        registry.load(version)


def test_a_version_whose_folder_cannot_be_listed_is_not_loaded(registry, monkeypatch):
    version = registry.save(HillClimb(), **ABOUT)

    def refused(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(ArtefactError, match="Permission denied"):
        registry.load(version)


def at_read(monkeypatch, number, happens):
    """Have something happen just before so many files are read."""
    before, reads = stored_files.read, []

    def read(path, *, limit):
        reads.append(path)
        if len(reads) == number:
            happens()
        return before(path, limit=limit)

    monkeypatch.setattr(stored_files, "read", read)


def test_versions_count_up_by_name_and_are_listed_in_order(registry):
    saved = [registry.save(model, **ABOUT) for model in [HillClimb()] * 11 + [create("ols")]]
    assert saved[:2] == ["hill_climb@1", "hill_climb@2"]
    assert registry.versions() == [f"hill_climb@{n}" for n in range(1, 12)] + ["ols@1"]


def test_the_manifest_says_what_a_version_is(registry):
    version = registry.save(HillClimb(interval=8), **ABOUT)
    manifest = registry.manifest(version)
    data = (version_directory(registry, version) / "model.json").read_bytes()
    assert (manifest.version, manifest.model, manifest.created) == (version, "hill_climb", "2026-01-02T12:00:00+00:00")
    assert (manifest.trained_on, manifest.metrics) == (ABOUT["trained_on"], ABOUT["metrics"])
    assert manifest.files == {"model.json": (hashlib.sha256(data).hexdigest(), len(data))}
    assert "threadcast" in manifest.libraries


def test_an_empty_registry_has_nothing_and_is_not_made_by_reading(tmp_path):
    registry = ModelRegistry(tmp_path / "none")
    assert (registry.versions(), registry.aliases()) == ([], {})
    with pytest.raises(NotFound, match="threadcast train"):
        registry.load("champion")
    assert not registry.root.exists()


def test_an_alias_moves_and_its_moves_are_kept(registry):
    for interval in (2, 4, 8):
        registry.save(HillClimb(interval=interval), **ABOUT)
    for number in (1, 2, 3):
        registry.set_alias("champion", f"hill_climb@{number}")
    assert registry.load("champion").interval == 8
    assert registry.aliases() == {"champion": "hill_climb@3"}
    assert [move.version for move in registry.history("champion")] == [f"hill_climb@{n}" for n in (1, 2, 3)]
    assert registry.history("champion")[0].time == "2026-01-02T12:00:00+00:00"


def test_rolling_back_undoes_one_move_at_a_time_and_is_itself_a_move(registry):
    for number in (1, 2, 3):
        registry.save(HillClimb(), **ABOUT)
        registry.set_alias("champion", f"hill_climb@{number}")
    assert registry.rollback("champion") == "hill_climb@2"
    assert registry.rollback("champion") == "hill_climb@1"
    with pytest.raises(NotFound, match="no earlier version"):
        registry.rollback("champion")
    registry.set_alias("champion", "hill_climb@3")
    assert registry.rollback("champion") == "hill_climb@1"
    assert [move.rollback for move in registry.history("champion")] == [False, False, False, True, True, False, True]


@pytest.mark.parametrize("alias", ["", "Champion", "a/b", "..", "a" * 65, "hill_climb@1"])
def test_aliases_that_are_no_names_are_refused(registry, alias):
    registry.save(HillClimb(), **ABOUT)
    with pytest.raises(InvalidInput, match="alias="):
        registry.set_alias(alias, "hill_climb@1")
    assert registry.aliases() == {}


@pytest.mark.parametrize("version", ["hill_climb@2", "hill_climb@01", "hill_climb", "../hill_climb@1", "nobody", ""])
def test_what_is_not_registered_is_not_found(registry, version):
    registry.save(HillClimb(), **ABOUT)
    for action in (registry.load, registry.manifest, lambda wanted: registry.set_alias("champion", wanted)):
        with pytest.raises(NotFound, match="hill_climb@1"):
            action(version)
    assert registry.aliases() == {}


def test_metrics_that_are_not_json_are_refused_and_nothing_is_registered(registry):
    with pytest.raises(InvalidInput, match="JSON"):
        registry.save(HillClimb(), trained_on={}, metrics={"accuracy": float("nan")})
    assert registry.versions() == []
    assert list((registry.root / "staging").iterdir()) == []


def test_a_model_whose_kind_is_not_registered_is_refused(registry):
    model = HillClimb()
    model.name = "secret_climb"
    with pytest.raises(InvalidInput, match="register it first"):
        registry.save(model, **ABOUT)


def test_files_with_paths_for_names_are_refused(registry):
    model = HillClimb()
    model.to_files = lambda: {"../escape.json": b"{}"}
    with pytest.raises(InvalidInput, match="escape"):
        registry.save(model, **ABOUT)
    assert not (registry.root / "escape.json").exists()


def test_threads_that_move_an_alias_at_once_lose_no_move(registry):
    for _ in range(4):
        registry.save(HillClimb(), **ABOUT)
    barrier = threading.Barrier(4)

    def move(number):
        barrier.wait()
        for _ in range(5):
            registry.set_alias("champion", f"hill_climb@{number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(move, range(1, 5)))
    moves = [move.version for move in registry.history("champion")]
    assert sorted(moves) == sorted([f"hill_climb@{n}" for n in range(1, 5)] * 5)
    assert registry.resolve("champion") == moves[-1]


@pytest.fixture
def damaged(registry):
    registry.save(HillClimb(interval=4), **ABOUT)
    return registry


def refused(registry, message):
    with pytest.raises(ArtefactError, match=message):
        registry.load("hill_climb@1")


def linked(path):
    path.rename(path.parents[2] / "elsewhere.json")
    path.symlink_to(path.parents[2] / "elsewhere.json")


def piped(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes().replace(b"4", b"8")), "sha256"),
        (lambda path: path.write_bytes(path.read_bytes() + b" " * 100), "longer than"),
        (lambda path: (path.parent / "extra.pkl").write_bytes(b"cos\nsystem\n"), "extra.pkl"),
        (lambda path: path.unlink(), "model.json"),
        (linked, "model.json"),
        (piped, "no plain file"),
    ],
    ids=["changed", "grown", "added", "missing", "a link", "a pipe"],
)
def test_files_that_are_not_those_that_were_registered_are_refused(damaged, change, message):
    change(version_directory(damaged, "hill_climb@1") / "model.json")
    refused(damaged, message)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "sub/model.json", "..", "manifest.json", ""])
def test_a_manifest_that_points_out_of_its_directory_is_refused(damaged, name):
    rewrite_manifest(
        damaged, "hill_climb@1", lambda document: document["files"].update({name: document["files"]["model.json"]})
    )
    refused(damaged, "lists the file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "threadcast.model/99"}, "schema"),
        ({"version": "hill_climb@2"}, "manifest of hill_climb@2"),
        ({"model": "ols"}, "ols"),
        ({"files": []}, "files must be an object"),
        ({"files": {"model.json": {"sha256": 3, "bytes": 3}}}, "sha256 must be a string"),
        ({"files": {"model.json": {"sha256": "00", "bytes": -1}}}, "at least 0"),
        ({"files": {"model.json": {"sha256": "00", "bytes": 2**40}}}, "larger than"),
        ({"created": None}, "created"),
    ],
)
def test_a_manifest_that_is_not_what_it_should_be_is_refused(damaged, change, message):
    rewrite_manifest(damaged, "hill_climb@1", lambda document: document.update(change))
    refused(damaged, message)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000], ids=repr)
def test_a_manifest_that_is_not_json_is_refused(damaged, data):
    (version_directory(damaged, "hill_climb@1") / "manifest.json").write_bytes(data)
    refused(damaged, "manifest.json")


def test_who_moved_an_alias_is_kept_also_for_moves_that_did_not_say(registry):
    registry.save(HillClimb(), **ABOUT)
    registry.set_alias("champion", "hill_climb@1", by="key ci")
    registry.set_alias("champion", "hill_climb@1", by="a\nb" + "c" * 500)
    path = registry.root / "aliases" / "champion" / "1.json"
    written = json.loads(path.read_text())
    del written["by"]
    path.write_text(json.dumps(written))
    first, second = registry.history("champion")
    assert first.by == ""
    assert second.by.startswith("a?b")
    assert len(second.by) == 128


def test_pruning_keeps_the_newest_and_whatever_an_alias_can_return_to(registry):
    for _ in range(6):
        registry.save(HillClimb(), **ABOUT)
    for number in (2, 3, 4):
        registry.set_alias("champion", f"hill_climb@{number}")
    registry.rollback("champion")  # 4 cannot be returned to any more
    assert registry.prunable(keep=1) == ["hill_climb@1", "hill_climb@4", "hill_climb@5"]
    assert registry.prunable(keep=3) == ["hill_climb@1"]
    for version in registry.prunable(keep=1):
        registry.remove(version)
    assert registry.versions() == ["hill_climb@2", "hill_climb@3", "hill_climb@6"]
    assert registry.rollback("champion") == "hill_climb@2"
    assert list((registry.root / "staging").iterdir()) == []
    with pytest.raises(InvalidInput, match="champion stands for it"):
        registry.remove("hill_climb@2")
    with pytest.raises(NotFound, match="registered: hill_climb@2"):
        registry.remove("hill_climb@1")
    with pytest.raises(InvalidInput, match="newest of its name"):
        registry.remove("hill_climb@6")
    with pytest.raises(InvalidInput, match="at least 1"):
        registry.prunable(keep=0)


@pytest.fixture
def with_damaged_alias(damaged):
    damaged.set_alias("champion", "hill_climb@1")
    for _ in range(3):
        damaged.set_alias("candidate", "hill_climb@1")
    (damaged.root / "aliases" / "candidate" / "2.json").write_text("{")
    return damaged


def test_a_damaged_alias_leaves_the_others_as_they_are(with_damaged_alias):
    assert with_damaged_alias.aliases() == {"champion": "hill_climb@1"}
    ((alias, reason),) = with_damaged_alias.all_aliases()[1].items()
    assert alias == "candidate"
    assert "2.json" in reason
    assert with_damaged_alias.is_alias("candidate")
    with_damaged_alias.set_alias("next", "champion")
    with pytest.raises(NotFound, match="candidate, champion, next, hill_climb@1"):
        with_damaged_alias.load("nobody")


def test_a_damaged_alias_is_not_moved_and_keeps_versions_from_being_removed(with_damaged_alias):
    for action in (
        lambda: with_damaged_alias.load("candidate"),
        lambda: with_damaged_alias.set_alias("candidate", "hill_climb@1"),
        lambda: with_damaged_alias.rollback("candidate"),
        lambda: with_damaged_alias.prunable(keep=1),
        lambda: with_damaged_alias.remove("hill_climb@1"),
    ):
        with pytest.raises(ArtefactError, match=r"candidate/2\.json"):
            action()


def test_an_alias_moves_on_after_a_damaged_file_was_deleted(with_damaged_alias):
    (with_damaged_alias.root / "aliases" / "candidate" / "2.json").unlink()
    with_damaged_alias.save(HillClimb(), **ABOUT)
    with_damaged_alias.set_alias("candidate", "hill_climb@2")
    assert with_damaged_alias.resolve("candidate") == "hill_climb@2"
    assert [move.version[-1] for move in with_damaged_alias.history("candidate")] == ["1", "1", "2"]
