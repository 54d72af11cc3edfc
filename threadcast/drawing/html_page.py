"""An HTML page without links to other files, and its tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root { color-scheme: light dark; --line: #8888; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem } h3 { font-size: 1rem; margin-bottom: .2rem }
table { border-collapse: collapse; margin: .6rem 0 } td, th { padding: .25rem .8rem .25rem 0; text-align: right }
td:not(:first-child) { white-space: nowrap }
td:first-child, th:first-child { text-align: left } th { border-bottom: 1px solid var(--line); font-weight: 600 }
.scroll { overflow-x: auto }
@media (max-width: 700px) { table { font-size: .7rem } td, th { padding-right: .4rem } }
tr.best td { font-weight: 600 } .note { opacity: .75; max-width: 46rem } .swatch { display: inline-block; width: .8em;
height: .8em; margin-right: .35em; border-radius: 2px }
.key { white-space: nowrap; margin-right: 1rem } svg { width: 100%; height: auto; display: block }
svg text { fill: currentColor; font: 11px system-ui, sans-serif } svg .title { font-weight: 600 }
.track { fill: var(--soft) }
"""


def html_page(title: str, body: Sequence[str]) -> str:
    """The page; `title` is text, `body` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>"
    )


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, which scrolls by itself on a narrow screen."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="group" aria-label="Table by {escape(columns[0])}">{table}</div>'
