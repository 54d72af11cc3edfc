"""What the package imports is what its extras install."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from tests.test_architecture import MODULES, PACKAGE, imports
from threadcast.cli.extras import EXTRAS

BASE = {"numpy", "click", "rich", "urllib3"}
BESIDE = {"werkzeug", "markupsafe", "pydantic_core", "pytest", "sitecustomize", "_typeshed"}
"""Flask's and pydantic's own foundations, what whoever runs the contract tests of `*/testing.py` has, what a user may
have, and what only type checkers import."""

PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]


def canonical(requirement: str) -> str:
    """The name of a requirement as indexes compare it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_a_base_install_brings_four_libraries():
    assert {canonical(requirement) for requirement in PROJECT["dependencies"]} == BASE


def test_every_library_that_is_imported_comes_with_an_extra():
    optional = {name for names in EXTRAS.values() for name in names}
    known = BASE | BESIDE | optional | sys.stdlib_module_names | {"threadcast"}
    unknown = {
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in MODULES
        for line, name in imports(path)
        if name.partition(".")[0] not in known
    }
    assert not unknown


def test_the_extra_that_an_error_names_installs_the_library():
    distributions = packages_distributions()
    for extra, names in EXTRAS.items():
        declared = {canonical(requirement) for requirement in PROJECT["optional-dependencies"][extra]}
        for name in names:
            installed_by = {canonical(found) for found in distributions.get(name, [name])}
            assert installed_by & declared, f"{name} is not in threadcast[{extra}]"
