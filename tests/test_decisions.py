"""Decision records: one page each, a number each, and no reference to one that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDS = {int(path.name[:4]): path for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))}
MOST_WORDS, MOST_WORDS_IN_ALL = 400, 9_000
SUFFIXES = {".py", ".md", ".cpp", ".h", ".ipynb", ".toml", ".yml"}

_LINK = re.compile(r"decisions/(\d{4}-[\w-]+\.md)")
_BESIDE = re.compile(r"\]\((\d{4}-[\w-]+\.md)\)")
_NUMBERS = re.compile(r"\bdecisions?\s+(\d{1,2}(?:(?:, | and )\d{1,2})*)\b", re.IGNORECASE)


def dangling(text: str, *, beside: bool = False) -> list[str]:
    """What `text` names of decisions and is not there; `beside`: the text is itself a record, which links to others."""
    names = {path.name for path in RECORDS.values()}
    links = _LINK.findall(text) + (_BESIDE.findall(text) if beside else [])
    numbers = [int(number) for found in _NUMBERS.findall(text) for number in re.findall(r"\d+", found)]
    return [name for name in links if name not in names] + [f"decision {n}" for n in numbers if n not in RECORDS]


def test_dangling_references_are_found() -> None:
    text = "[why](../decisions/0999-no.md), decisions 1 and 98, [Decision\n99](0997-no.md)"
    assert dangling(text) == ["0999-no.md", "decision 98", "decision 99"]
    assert dangling(text, beside=True)[1] == "0997-no.md"


def test_references_lead_to_decisions_that_are_there() -> None:
    folders = ("threadcast", "tests", "benchmarks", "docs", "data", "notebooks", "deploy")
    paths = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__)
        if (found := dangling(path.read_text(errors="replace"), beside=path in RECORDS.values()))
    }
    assert not wrong


def test_records_are_one_page_each() -> None:
    texts = {path.name: path.read_text() for path in RECORDS.values()}
    words = {name: len(text.split()) for name, text in texts.items()}
    assert not {name: found for name, found in words.items() if found > MOST_WORDS}
    assert sum(words.values()) <= MOST_WORDS_IN_ALL
    assert [name for name, text in texts.items() if not re.match(rf"# {int(name[:4])}\. \w[^:\n]*: .+\n", text)] == []
    assert len(RECORDS) == len(list((ROOT / "docs" / "decisions").iterdir())), "two records have one number"
