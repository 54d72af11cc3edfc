"""The pages for people: complete, and with nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.service.service_data import MACHINE, OPS
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store


class _Page(HTMLParser):
    """Checks that tags are balanced and gathers what a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert tag not in ("script", "iframe", "style")
        assert "style" not in named
        assert not any(name.startswith("on") for name in named)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if "id" in named:
            self.ids.add(str(named["id"]))
        if tag == "a":
            self.links.append(str(named["href"]))
        self.loaded += [str(named[name]) for name in ("src", "href") if name in named and tag != "a"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(client: FlaskClient, path: str) -> tuple[_Page, str]:
    response = client.get(path)
    assert response.status_code == 200
    return _Page(response.text), response.text


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_loads_our_style_sheet_and_nothing_else(client: FlaskClient, path: str) -> None:
    found, text = page(client, path)
    assert found.loaded == ["/static/style.css"]
    assert client.get("/static/style.css", buffered=True).content_type.startswith("text/css")
    assert not re.search(r"https?://", text)


def test_the_front_page_lists_machines_models_graphs_and_ops(client: FlaskClient) -> None:
    _, text = page(client, "/")
    for expected in (MACHINE.fingerprint, "roofline@1", "roofline@2", "champion", "net", *(op.key for op in OPS)):
        assert expected in text
    assert "5 of 5" in text


def test_every_link_leads_somewhere(client: FlaskClient) -> None:
    for path in ("/", "/docs"):
        found, _ = page(client, path)
        assert found.links
        for link in found.links:
            if link.startswith("#"):
                assert link[1:] in found.ids
            else:
                assert client.get(link).status_code == 200


def test_another_machine_can_be_chosen(client: FlaskClient, settings: ServiceSettings) -> None:
    other = Machine.uniform("other", 2)
    with Store.open(settings.store) as store:
        store.add([Measurement(OPS[0], other, Case(2), (Sample(0.00025),))])
    _, text = page(client, f"/?machine={other.fingerprint}")
    assert "1 of 1" in text
    assert "0.25" in text


def test_names_from_outside_are_escaped(client: FlaskClient, settings: ServiceSettings) -> None:
    bad = "<script>alert(1)</script>"
    with Store.open(settings.store) as store:
        store.add([Measurement(Op(bad), Machine.uniform(bad, 1), Case(1), (Sample(1.0),))])
    machine = Machine.uniform(bad, 1).fingerprint
    _, text = page(client, f"/?machine={machine}")
    assert "&lt;script&gt;" in text


def test_pages_of_an_empty_service_say_how_to_fill_it(tmp_path: Path) -> None:
    app = create_app(ServiceSettings(store=tmp_path / "s.sqlite", models=tmp_path / "none"))
    _, text = page(app.test_client(), "/")
    assert "threadcast profile" in text
    assert "threadcast train" in text
    app.extensions["threadcast"].store.close()


def test_the_reference_has_every_route_and_document(client: FlaskClient) -> None:
    found, text = page(client, "/docs")
    spec = client.get("/openapi.json").get_json()
    for path, item in spec["paths"].items():
        for method in item:
            assert f"<code>{method.upper()} {path}</code>" in text
    assert set(spec["components"]["schemas"]) <= found.ids
