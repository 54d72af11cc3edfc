"""The pictures of README.md from the page that `make demo` writes.

    python benchmarks/demo_pictures.py [--report build/demo/report.html] [--output docs/images]

Needs Chromium on the PATH.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURES = {
    "timeline.png": ("inception_block-training", "h3:has(+ .curves), .curves"),
    "many-core.png": ("many-core", ".note"),
}
"""By file name: the id of the section of the page, and a selector of what the picture leaves out of it."""
WIDTH = 1100


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, default=Path("build/demo/report.html"))
    parser.add_argument("--output", type=Path, default=Path("docs/images"))
    chosen = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")
        page.goto(chosen.report.resolve().as_uri())
        page.add_style_tag(content="section { padding: .3rem .2rem } section h2 { margin-top: 0 }")
        for file, (name, left_out) in PICTURES.items():
            page.add_style_tag(content=f"#{name} :is({left_out}) {{ display: none }}")
            page.locator(f"#{name}").screenshot(path=chosen.output / file)
        browser.close()


if __name__ == "__main__":
    main()
