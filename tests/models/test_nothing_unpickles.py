"""Nothing that loading a model can reach unpickles, evaluates or starts anything."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.models.stored_kinds import KINDS, stored
from tests.test_architecture import PACKAGE, UNSAFE, imports, tree_of
from threadcast.models import registry_of_kinds

ROOTS = ("threadcast.models.registry", "threadcast.models.registry_of_kinds")
"""Where loading begins."""

READERS = {"np.load": "artefacts.py", "xgboost.Booster": "boosted_trees.py"}
"""The calls by which other libraries read what a file holds, and the one module that makes them."""

OURS = {
    ("json.loads", "*"),
    ("BoostedTrees.load", "*"),
    ("ctypes.CDLL", "openmp.py"),
    ("ctypes.CDLL", "openmp_places.py"),
}
"""Calls that sound alike and are harmless: the last opens the OpenMP library that this process has loaded."""

FORBIDDEN_CALLS = frozenset({
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.run", "subprocess.Popen",
    "joblib.load", "torch.load", "torch.jit.load", "pandas.read_pickle", "pd.read_pickle", "numpy.load",
    "yaml.load",
    "np.fromfile", "np.memmap", "np.lib.format.read_array", "xgboost.Booster", "ctypes.CDLL", "runpy.run_path",
})  # fmt: skip
LOADERS = frozenset({"load", "loads", "load_model", "read_pickle", "Unpickler", "find_class"})
"""Names of functions that, from any library, read objects."""


def module_file(name: str) -> Path | None:
    """The file of one of our modules, or of the module that has the name in it."""
    parts = name.split(".")[1:]
    for at in (parts, parts[:-1]):
        for file in (PACKAGE.joinpath(*at, "__init__.py"), PACKAGE.joinpath(*at).with_suffix(".py")):
            if at and file.is_file():
                return file
    return None


def named_factories(path: Path) -> Iterator[str]:
    """Modules that a file names as "package.module:attribute", to be imported later."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("threadcast."):
            yield node.value.partition(":")[0]


@cache
def reachable() -> set[Path]:
    """Every file of ours that can be imported from the roots, at the top of files and inside functions."""
    found: set[Path] = set()
    waiting = [*(file for root in ROOTS if (file := module_file(root))), *(PACKAGE / "models/regressors").glob("*.py")]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        names = [name for _, name in imports(path) if name.startswith("threadcast.")] + list(named_factories(path))
        waiting += [file for name in names if (file := module_file(name))]
    return found


def unsafe(path: Path, source: str) -> list[str]:
    """What in a module could run what a file says."""
    tree = ast.parse(source)
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [alias.name for alias in node.names]
            wrong += [f"imports {n}" for n in [module, *names] if n.partition(".")[0] in UNSAFE]
            if isinstance(node, ast.ImportFrom) and not module.startswith("threadcast"):
                wrong += [f"imports {module}.{name}" for name in names if name in LOADERS]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            reads = called in FORBIDDEN_CALLS or called.rpartition(".")[2] in LOADERS
            known = READERS.get(called) == path.name or not OURS.isdisjoint({(called, "*"), (called, path.name)})
            if reads and not known:
                wrong.append(f"calls {called}")
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if options.get("allow_pickle", "False") != "False" or (
                called == "np.load" and "allow_pickle" not in options
            ):
                wrong.append(f"calls {called} without allow_pickle=False")
            if called.rpartition(".")[2] == "import_module" and path.name not in (
                "by_name.py",
                "contract.py",  # of libraries that our own regressors name
                "__init__.py",
            ):
                wrong.append(f"calls {called}")
    return wrong


def test_the_graph_holds_all_that_loads() -> None:
    names = {path.name for path in reachable()}
    assert {"artefacts.py", "boosted_trees.py", "learned_curve.py"} <= names
    for kind in registry_of_kinds.names():
        module = type(registry_of_kinds.create(kind)).__module__
        assert module_file(module) in reachable()


def test_no_module_that_loading_reaches_runs_what_a_file_says() -> None:
    wrong = [f"{path.relative_to(PACKAGE)} {what}" for path in reachable() for what in unsafe(path, path.read_text())]
    assert not wrong


def test_the_readers_of_other_libraries_are_called_in_one_place() -> None:
    calling = sorted(
        (called, path.name)
        for path in reachable()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in READERS
    )
    assert calling == sorted(READERS.items())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import a, marshal", "from joblib import load", "joblib.load(f)",
        "np.load(f)", "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=flag)",
        "torch.load(f)", "eval(text)", "exec(text)", "cloud.loads(d)",
        "importlib.import_module(name)", "subprocess.run(c)", "library.Unpickler(f)", "x.load_model(f)",
        "from numpy import load",
    ],
)  # fmt: skip
def test_the_check_finds_what_it_looks_for(source: str) -> None:
    assert unsafe(Path("artefacts.py"), source)


PROGRAM = """
import io, pickle, sys, types
sys.path.insert(0, {tests!r})
from threadcast.models import registry_of_kinds
from tests.models.stored_kinds import read_from

import sklearn.linear_model, sklearn.neighbors, xgboost  # what these unpickle while they are imported is theirs
files = read_from({folder!r})

def forbidden(*args, **options):
    raise SystemExit("something was unpickled")

def watch(event, args):
    if event in ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"):
        raise SystemExit(f"loading caused {{event}}")

pickle.load = pickle.loads = pickle.Unpickler = pickle._Unpickler = forbidden
sys.addaudithook(watch)
for kind, stored in files.items():
    registry_of_kinds.create(kind).from_files(stored)
print(len(files))
"""


def test_every_kind_loads_with_unpickling_made_impossible(tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        for name, data in stored(kind).items():
            (tmp_path / kind / name).write_bytes(data)
    program = PROGRAM.format(tests=str(Path(__file__).parents[2]), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (str(len(KINDS)), 0), done.stderr
