"""What a user sees of the package before knowing it: names to complete, and `help`."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import threadcast

FUNCTIONS = ("attach", "optimize", "optimize_training")


def test_completion_finds_every_public_name():
    assert set(threadcast.__all__) <= set(dir(threadcast))


def test_listing_names_imports_no_torch():
    program = "import sys, threadcast; dir(threadcast); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_names_that_need_torch_are_not_listed_without_it():
    program = """if True:
        import importlib.util
        importlib.util.find_spec = lambda name: None
        import threadcast
        print([name for name in dir(threadcast) if not name.startswith("_")])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['attach']\n"


def test_help_shows_every_public_function_with_its_documentation():
    shown = pydoc.render_doc(threadcast, renderer=pydoc.plaintext)
    for name in FUNCTIONS:
        first_line = inspect.getdoc(getattr(threadcast, name)).splitlines()[0]
        assert f"    {name}(" in shown
        assert first_line in shown
