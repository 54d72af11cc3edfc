"""Has a library answer questions about its operators, in a process that it may end: `library_facts` starts it.

Run as a module, with the library's name and a folder as arguments: it runs `model.onnx` in that folder with the arrays
of each `given-*.npz`, and writes `answers-*.npz`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from threadcast.runtime.backends.onnx_libraries import request, session, write_optimised


def main(library: str, folder: Path) -> None:
    """Ask the library."""
    model = folder / "model.onnx"
    call = request(model, 1) if library == "openvino" else session(write_optimised(model), 1)
    for path in folder.glob("given-*.npz"):
        with np.load(path) as given:
            np.savez(folder / path.name.replace("given", "answers"), *call(list(given.values())))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
