"""Every page for people, as a browser without scripts gets it: complete, safe, and with nothing from elsewhere."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import GRAPH, MACHINE, OPS
from threadcast.core import Case, Machine, Measurement, Op, Placement, Plan, Sample, Trace
from threadcast.service.app import create_app
from threadcast.service.pages import SECURITY_HEADERS
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

OP = f"/ops/{OPS[0].key}"
PAGES = (
    "/", "/machines", "/ops", OP, "/networks", "/networks/net", "/plans", "/drift", "/models", "/docs",
)  # fmt: skip
VOID = ("meta", "link", "input", "img", "br")


class _Page(HTMLParser):
    """Checks that tags are balanced and nothing is inline, and gathers what a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.labelled: list[bool] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert tag not in ("iframe", "style")
        assert tag != "script" or "src" in named or named.get("type") == "application/json"
        assert "style" not in named
        assert not any(name.startswith("on") for name in named)
        if tag in ("input", "select") and named.get("type") != "hidden":
            self.labelled.append("label" in self.open)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in named:
            self.ids.append(str(named["id"]))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "a":
            self.links.append(str(named["href"]))
        self.loaded += [str(named[name]) for name in ("src", "href") if name in named and tag != "a"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(client: FlaskClient, path: str, status: int = 200) -> tuple[_Page, str]:
    response = client.get(path)
    assert response.status_code == status
    assert response.content_type == "text/html; charset=utf-8"
    return _Page(response.text), response.text


@pytest.mark.parametrize("path", PAGES)
def test_each_cell_of_a_table_names_its_column(client: FlaskClient, path: str) -> None:
    """Windows that are too narrow for columns show that name before the cell."""
    for table in re.findall(r"<table>(.*?)</table>", page(client, path)[1], re.DOTALL):
        head, _, body = table.partition("</thead>")
        names = [re.sub(r"<[^>]*>|[ ↑↓]+$", "", name).strip(" ↑↓") for name in re.findall(r"<th\b.*?>(.*?)</th>", head)]
        for row in re.findall(r"<tr\b.*?</tr>", body, re.DOTALL):
            found = [html.unescape(name) for name in re.findall(r'<t[hd] data-head="(.*?)"', row)]
            assert found == [html.unescape(name) for name in names[: len(found)]]
            assert len(found) == len(names) or "colspan" in row


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_our_own_files_and_nothing_else(client: FlaskClient, path: str) -> None:
    found, text = page(client, path)
    assert found.loaded
    for file in set(found.loaded):
        assert file.startswith("/static/")
        assert client.get(file, buffered=True).status_code == 200
    assert not re.search(r"https?://", text)


def test_the_policy_allows_no_inline_script_and_no_other_host(client: FlaskClient) -> None:
    policy = client.get("/").headers["Content-Security-Policy"]
    assert policy == SECURITY_HEADERS["Content-Security-Policy"]
    sources = {part.split()[0]: part.split()[1:] for part in policy.split("; ")}
    assert sources.pop("default-src") == ["'none'"]
    assert {source for listed in sources.values() for source in listed} == {"'self'", "'none'"}


@pytest.mark.parametrize("path", PAGES)
def test_headings_ids_and_labels_are_as_a_screen_reader_needs_them(client: FlaskClient, path: str) -> None:
    found, _ = page(client, path)
    assert found.headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(found.headings, found.headings[1:]))
    assert len(set(found.ids)) == len(found.ids)
    assert all(found.labelled)


@pytest.mark.parametrize("path", PAGES)
def test_every_link_leads_somewhere(client: FlaskClient, path: str) -> None:
    found, _ = page(client, path)
    for link in set(found.links):
        if link.startswith("#"):
            assert link[1:] in found.ids
        elif "timeline.json" not in link:
            assert client.get(link).status_code == 200


def test_the_overview_says_what_is_known(client: FlaskClient) -> None:
    _, text = page(client, "/")
    for expected in (MACHINE.fingerprint, "roofline@1", "net", *(op.kind for op in OPS)):
        assert expected in text


def test_machines_are_drawn_core_by_core(client: FlaskClient) -> None:
    _, text = page(client, "/machines")
    assert text.count('class="core') == len(MACHINE)
    assert MACHINE.fingerprint in text


def test_ops_come_in_pages_in_the_order_asked_for(client: FlaskClient, settings: ServiceSettings) -> None:
    many = [Op("relu", attributes={"n": i}) for i in range(120)]
    machine = Machine.uniform("other", 2)
    with Store.open(settings.store) as store:
        store.add([Measurement(op, machine, Case(1), (Sample(1e-3 * (i + 1)),)) for i, op in enumerate(many)])
    pages: list[list[str]] = []
    link = f"/ops?machine={machine.fingerprint}&order=up"

    def follow(name: str) -> str:
        _, text = page(client, link)
        found = re.search(rf'id="page-{name}"[^>]*? href="([^"]+)"', text)
        return html.unescape(found[1]) if found else ""

    def keys() -> list[str]:
        return re.findall(r'<a href="/ops/(relu-[0-9a-f]+)', page(client, link)[1])

    while link:
        pages.append(keys())
        shown, link = link, follow("next")
    assert [key for found in pages for key in found] == [op.key for op in many]
    link = shown
    assert "101–120 of 120 ops" in page(client, link)[1]
    for number in (1, 0):
        link = follow("back")
        assert (keys(), f"page {number + 1} of 3" in page(client, link)[1]) == (pages[number], True)
    link = follow("last")
    assert (keys(), "page 3 of 3" in page(client, link)[1]) == (pages[2], True)
    link = follow("first")
    assert keys() == pages[0]
    assert "There is nothing further" in page(client, f"{link}&after={many[-1].key}")[1]


@pytest.mark.parametrize(
    "query",
    [
        "page=0",
        "page=x",
        "page=99999999999",
        "after=no",
        "before=no",
        "last=no",
        "before=x&after=y&last=1&page=7",
        "sort=drop",
        "order=x",
        "q=%25%27--",
        "kind=no",
    ],
)
def test_addresses_that_make_no_sense_still_give_a_page(client: FlaskClient, query: str) -> None:
    page(client, f"/ops?{query}")


def test_an_op_shows_measured_points_and_the_line_of_each_model(client: FlaskClient) -> None:
    _, text = page(client, OP)
    (chart,) = (json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', text))
    names = [line["name"] for line in chart["lines"]]
    assert "roofline@2" in names
    assert any(name.startswith("measured") for name in names)
    assert any(name.startswith("fastest") for name in names)
    assert chart["lines"][0]["low"]
    assert "<noscript>" in text


def test_the_last_run_is_shown_with_the_prediction_and_one_traced_step(
    client: FlaskClient, settings: ServiceSettings
) -> None:
    placed = [Placement(op_id, (0,), 1, float(i), i + 1.0) for i, op_id in enumerate(GRAPH.ids)]
    plan, trace = Plan(1, "fifo", tuple(placed)), Trace(1, "fifo", tuple(placed))
    with Store.open(settings.store) as store:
        store.add_run("net", MACHINE, plan=plan, trace=trace, time="2026-01-02T03:04:05+00:00")
    _, text = page(client, "/networks/net")
    assert "2026-01-02 03:04" in text
    assert re.findall(r"<h3>([\w ]+),", text) == ["Predicted", "One traced step"]
    assert "; one traced step took <strong>" in text
    assert f"{GRAPH.ids[0]} ({GRAPH.ops[0].kind}), 1 thread, 1.00 s from 0 s" in text
    assert client.get("/networks/net/timeline.json").get_json()["traceEvents"]


def test_ops_that_have_changed_are_listed_and_what_was_not_measured_since_is_marked(
    client: FlaskClient, settings: ServiceSettings
) -> None:
    assert "now over before" not in page(client, "/drift")[1]
    op, case = OPS[0], MACHINE.cases()[0]
    time = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    later = {"cache": "warm", "time": time}
    with Store.open(settings.store) as store:
        (before,) = [m for m in store.measurements(keys=[op.key]) if m.case == case]
        store.add([Measurement(op, MACHINE, case, (Sample(3 * before.seconds),) * 3, later)])
    _, text = page(client, "/drift")
    assert "now over before" in text
    assert re.search(rf'<a href="/ops/{op.key}[^>]*>mm</a></th><td[^>]*>{time[:10]}</td>', text)
    _, text = page(client, f"/ops/{op.key}")
    assert text.count(">changed since<") == len(MACHINE.cases()) - 1


def test_names_from_outside_are_escaped(client: FlaskClient, settings: ServiceSettings) -> None:
    bad = "</script><script>alert(1)</script>"
    machine, op = Machine.uniform(bad, 1), Op(bad, attributes={bad: bad})
    with Store.open(settings.store) as store:
        store.add([Measurement(op, machine, Case(1), (Sample(1.0),))])
    for path in (f"/?machine={machine.fingerprint}", f"/ops?machine={machine.fingerprint}", "/machines"):
        assert "&lt;script&gt;" in page(client, path)[1]
    response = client.get("/ops", query_string={"q": bad, "machine": machine.fingerprint})
    _Page(response.text)


@pytest.mark.parametrize(
    "path", ["/ops/none", "/networks/none", "/?machine=none", f"{OP}?machine=none", "/drift?machine=none"]
)
def test_what_there_is_not_is_a_page_that_says_so(client: FlaskClient, path: str) -> None:
    _, text = page(client, path, 404)
    assert "Not found" in text


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/", "threadcast profile"), ("/", "threadcast train"), ("/machines", "threadcast profile"),
        ("/ops", "threadcast profile"), ("/networks", "threadcast profile"),
        ("/drift", "threadcast profile"), ("/models", "threadcast train"),
    ],
)  # fmt: skip
def test_an_empty_page_says_how_to_fill_it(tmp_path: Path, path: str, command: str) -> None:
    app = create_app(ServiceSettings(store=tmp_path / "s.sqlite", models=tmp_path / "none"))
    _, text = page(app.test_client(), path)
    assert command in text
    app.extensions["threadcast"].store.close()
