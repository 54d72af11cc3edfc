"""`threadcast.prediction` offers its public names, and imports their modules only when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from threadcast import prediction


@pytest.mark.parametrize("name", prediction.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(prediction, name).__name__ == name
    assert name in dir(prediction)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Oracle'"):
        _ = prediction.Oracle


def test_the_package_alone_imports_no_http_client() -> None:
    program = "import sys, threadcast.prediction; print('urllib3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
