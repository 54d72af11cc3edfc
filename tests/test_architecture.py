"""The rules of the house: who may import whom, what a start imports, what is never loaded, what is documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import threadcast

PACKAGE = Path(threadcast.__file__).parent
LAYERS = (
    "core", "drawing", "threads", "networks", "store", "capture", "collector", "models", "prediction",
    "scheduler", "runtime", "malleable", "service", "fleet", "cli",
)  # fmt: skip
"""From the bottom up: a part imports itself and those before it."""
ROOMS = {
    "capture": ("guards", "graph"),
    "scheduler": ("problem", "interference", "kernels", "bounds", "simulation", "policies", "search"),
    "runtime": (
        "engine",
        "operators",
        "check",
        "plans",
        "tuner",
        "backends",
        "watching",
        "bundles",
        "calls",
        "updates",
        "compiled",
        "doors",
    ),
}
"""Folders within a part, likewise; the part's loose files come last."""

MOST = {
    "models": (8_550, 67),
    "models/regressors": (390, 15),
    "prediction": (1_670, 16),
    "scheduler": (630, 15),
    "scheduler/problem": (610, 15),
    "scheduler/interference": (260, 15),
    "scheduler/kernels": (1_340, 15),
    "scheduler/bounds": (660, 15),
    "scheduler/simulation": (510, 15),
    "scheduler/policies": (1_610, 19),
    "scheduler/search": (790, 15),
    "malleable": (3_980, 35),
    "core": (4_040, 41),
    "drawing": (250, 15),
    "networks": (1_660, 17),
    "threads": (880, 15),
    "store": (4_455, 32),
    "collector": (2_290, 18),
    "service": (6_820, 57),
    "cli": (4_985, 39),
    "fleet": (705, 15),
    "capture/guards": (1_850, 15),
    "capture/graph": (3_335, 15),
    "runtime/engine": (615, 15),
    "runtime/operators": (1_569, 15),
    "runtime/check": (1_193, 15),
    "runtime/plans": (2_100, 15),
    "runtime/tuner": (4_260, 18),
    "runtime/backends": (3_540, 22),
    "runtime/watching": (650, 15),
    "runtime/bundles": (510, 15),
    "runtime/calls": (1_240, 16),
    "runtime/updates": (725, 15),
    "runtime/compiled": (1_940, 15),
    "runtime/doors": (1_670, 15),
}
"""How large a room may be: lines (its size when its essay was written, and 5 %), and files beside the essay, of which
fifteen are enough. Who needs more says why in the commit."""

MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
ONLY_IN = {
    "flask": ("service",),
    "apiflask": ("service",),
    "gunicorn": ("service",),
    "tornado": ("service",),
    "sqlalchemy": ("store",),
    "distributed": ("fleet", "models"),
    "alembic": ("store",),
    "torch": ("networks", "threads", "capture", "collector", "runtime", "cli"),
}
"""Libraries that only these parts may import, at the top of a file or inside a function."""

NOT_AT_START = ("torch", "pandas", "sklearn", "xgboost", "sqlalchemy", "flask", "pyarrow", "scipy", "joblib", "numba")
UNPICKLING = ("joblib.load", "torch.load", "pd.read_pickle", "pandas.read_pickle")
UNSAFE = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def layer_of(path: Path) -> str | None:
    """The part of the house that a file lies in; None for those of the package itself."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """`walk_imports`, read once."""
    return tuple(walk_imports(path))


def walk_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, at its top or inside functions.

    `from package import name` gives "package.name": the name may be a module.
    """
    here = ("threadcast", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(here[: len(here) - node.level]) if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_module", "importlib.import_module"):
            first = node.args[0]
            text = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield node.lineno, text.value


def test_every_folder_is_a_layer():
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE}
    assert folders == set(LAYERS)


def allowed_layers(path: Path) -> tuple[str, ...]:
    """`__init__` names the package's two calls, which it imports when they are asked for; `__main__` is the command."""
    layer = layer_of(path)
    if path in (PACKAGE / "__init__.py", PACKAGE / "__main__.py"):
        return LAYERS
    return LAYERS[: LAYERS.index(layer) + 1] if layer else ()


def test_imports_point_down_only():
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in MODULES
        for line, name in imports(path)
        if name.startswith("threadcast.")
        and (part := name.split(".")[1]) in LAYERS
        and part not in allowed_layers(path)
    ]
    assert not wrong


def test_every_folder_of_a_part_has_its_place():
    for part, rooms in ROOMS.items():
        assert {path.parent.name for path in (PACKAGE / part).glob("*/__init__.py")} == set(rooms), part


def test_rooms_stay_as_large_as_they_are() -> None:
    for room, (most_lines, most_files) in MOST.items():
        texts = [path.read_text() for path in (PACKAGE / room).glob("*.py")]
        assert sum(text.count("\n") for text in texts) <= most_lines, room
        assert len(texts) <= most_files + 1, room


def test_no_file_of_the_runtime_lies_outside_of_its_rooms() -> None:
    assert [path.name for path in (PACKAGE / "runtime").glob("*.py")] == ["__init__.py"]


def allowed_rooms(path: Path) -> tuple[str, ...]:
    """What a file of a part may import of it: rooms up to its own; loose files lie above all rooms."""
    part, *inner = path.relative_to(PACKAGE).parts
    rooms = ROOMS[part]
    loose = (file.stem for file in (PACKAGE / part).glob("*.py"))
    return rooms[: rooms.index(inner[0]) + 1] if inner[0] in rooms else (*rooms, *loose)


def test_imports_within_a_part_point_down_only():
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in MODULES
        if (part := layer_of(path)) in ROOMS
        for allowed in [allowed_rooms(path)]
        for line, name in imports(path)
        if name.startswith(f"threadcast.{part}.") and name.split(".")[2] not in allowed
    ]
    assert not wrong


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions count, too: a circle that only runs later is a circle all the same."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph = {
        name: {next((found for found in (target, target.rpartition(".")[0]) if found in modules), name)
               for _, target in imports(path)} - {name}
        for name, path in modules.items()
    }  # fmt: skip
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_libraries_stay_in_the_parts_that_own_them():
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in MODULES
        for line, name in imports(path)
        if (owners := ONLY_IN.get(name.partition(".")[0])) and layer_of(path) not in owners
    ]
    assert not wrong


def unpickles(call: ast.Call) -> bool:
    """Whether a call reads pickles, or may: `allow_pickle` is not False."""
    allowing = [word.value for word in call.keywords if word.arg == "allow_pickle"]
    return ast.unparse(call.func) in UNPICKLING or any(ast.unparse(value) != "False" for value in allowing)


def test_nothing_is_ever_unpickled():
    """`joblib.load` and `numpy.load(allow_pickle=True)` unpickle, too; `__reduce__` only lets others pickle."""
    wrong = [
        f"{name_of(path)}:{line} imports {name}"
        for path in MODULES
        for line, name in imports(path)
        if name.partition(".")[0] in UNSAFE
    ]
    wrong += [
        f"{name_of(path)}:{node.lineno} {ast.unparse(node)}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and unpickles(node)
    ]
    assert not wrong


def test_a_start_imports_only_the_base_install():
    """Each of these starts without the others' libraries, so they may come in one process."""
    program = f"import sys, threadcast.core, threadcast.cli.main, threadcast.scheduler; \
print(*[n for n in {NOT_AT_START!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_optimize_imports_no_library_but_torch_and_collects_no_garbage_meanwhile():
    """A script waits for this import: what a service, a store or a model needs comes when it is used."""
    program = f"""import gc, sys, torch, threadcast
before, collected = set(sys.modules), []
gc.callbacks.append(lambda phase, details: collected.append(details["generation"]))
threadcast.optimize
print(2 in collected, *[n for n in {(*NOT_AT_START[1:], "urllib3")!r} if n in sys.modules and n not in before])"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@cache
def classes() -> dict[str, ast.ClassDef]:
    """The package's classes by name."""
    found = (node for path in MODULES for node in ast.walk(tree_of(path)))
    return {node.name: node for node in found if isinstance(node, ast.ClassDef)}


def has(cls: ast.ClassDef, method: str) -> bool:
    return any(isinstance(member, ast.FunctionDef) and member.name == method for member in cls.body)


def is_override(cls: ast.ClassDef, method: str) -> bool:
    """Whether a base class documents `method`: one of ours that has it, or any class of another library."""
    for base in map(ast.unparse, cls.bases):
        known = classes().get(base.partition("[")[0].rpartition(".")[2])
        if known is None and base not in ("ABC", "Protocol", "Enum", "StrEnum", "NamedTuple"):
            return True
        if known is not None and (has(known, method) or is_override(known, method)):
            return True
    return False


def public_definitions(path: Path) -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    """The module and its public classes, functions and methods that must say what they are.

    Overrides inherit their documentation, the name of a test is its documentation, and members of a protocol are
    described with it.
    """
    tree = tree_of(path)
    yield name_of(path), tree
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield f"{name_of(path)}:{node.lineno} {node.name}", node
        if not isinstance(node, ast.ClassDef) or any("Protocol" in ast.unparse(base) for base in node.bases):
            continue
        for member in node.body:
            if not isinstance(member, ast.FunctionDef) or member.name.startswith(("_", "test_")):
                continue
            if not is_override(node, member.name):
                yield f"{name_of(path)}:{member.lineno} {node.name}.{member.name}", member


def test_everything_public_is_documented():
    missing = [name for path in MODULES for name, node in public_definitions(path) if not ast.get_docstring(node)]
    assert not missing
