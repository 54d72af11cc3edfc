"""Programs of Debian packages, installed by apt where they are missing and root can do so."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import lru_cache

import pytest


@lru_cache
def program(name: str, package: str) -> str:
    """Return the path of a program; the test is skipped, with the reason, where it can not be had."""
    found = shutil.which(name)
    if found is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip(f"{name} is not installed, and only root can do so by apt-get install {package}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # starts no services
        for command in (["update"], ["install", "--yes", "--no-install-recommends", package]):
            subprocess.run(["apt-get", "-qq", *command], capture_output=True, env=environment, check=False)
        found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed, and apt-get install {package} failed")
    return found
