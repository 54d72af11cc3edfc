"""Runs notebooks from top to bottom and stores their results in them.

python benchmarks/notebooks.py [NAME ...]          all, or those whose names begin so
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import click
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Run the notebooks in an empty folder, as their test does, and store what their cells show."""
    os.environ["THREADCAST_DATA"] = str(ROOT / "data")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if names and not path.name.startswith(names):
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}})
            client.record_timing = False
            client.execute()
        for cell in notebook.cells:
            _join_streams(cell)
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        nbformat.write(notebook, path)
        click.echo(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def _join_streams(cell: Any) -> None:
    """Join a cell's pieces of text: into how many a kernel divides it depends on time."""
    joined: list[Any] = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    if joined:
        cell.outputs = joined


if __name__ == "__main__":
    main()
