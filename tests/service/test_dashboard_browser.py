"""The dashboard in a real browser, Debian's Chromium, against the real server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.service.service_data import GRAPH, MACHINE, MEASURED, OPS
from tests.services import need
from threadcast.cli.demo_service import service
from threadcast.core import Case, Machine, Measurement, Op, Placement, Plan, Sample, Trace
from threadcast.models.registry import ModelRegistry
from threadcast.store import Store

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.system

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
MANY = Machine.uniform("many", 4)
RELUS = [Op("relu", attributes={"name": f"item{i:03}"}) for i in range(120)]
OP = f"/ops/{OPS[0].key}?machine={MACHINE.fingerprint}"
NETWORK = f"/networks/net?machine={MACHINE.fingerprint}"
PAGES = (
    "/",
    "/machines",
    f"/ops?machine={MANY.fingerprint}",
    OP,
    "/networks",
    NETWORK,
    "/plans",
    f"/drift?machine={MACHINE.fingerprint}",
    "/models",
    "/docs",
    "/ops/none",
)


CUT_OFF = """
    [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel)
"""
"""Tables of which a part is to be seen only after scrolling: in a narrow window the times would be, on the right."""


@dataclass(slots=True)
class Watch:
    """What a page did that it should not."""

    host: str
    said: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def on(self, page: playwright.Page) -> None:
        """Listen from now on. A browser reports a refused page as an error of its own, which is none."""
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on(
            "console",
            lambda m: self.said.append(m.text) if m.type in ("error", "warning") and "404" not in m.text else None,
        )
        page.on("request", lambda r: None if r.url.startswith(self.host) else self.elsewhere.append(r.url))


@pytest.fixture(scope="module")
def models_root(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry of this module's own, with figures to compare."""
    root = tmp_path_factory.mktemp("browser") / "models"
    shutil.copytree(models, root)
    registry = ModelRegistry(root)
    row = {"samples": 2, "accuracy": 0.9, "regret_mean": 0.05, "ops": 5, "unusable": 0}
    for accuracy, samples in ((0.9, 1), (0.7, 4)):
        model = registry.load("roofline@1")
        registry.save(
            model,
            trained_on={"ops": 5, "measurements": 40},
            metrics={"new_shape": {**row, "accuracy": accuracy, "samples": samples}},
        )
    return root


@pytest.fixture(scope="module")
def host(models_root: Path, filled_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server over a store with two machines, many ops, a run and later measurements."""
    folder = tmp_path_factory.mktemp("browser-store")
    shutil.copy(filled_store, folder / "store.sqlite")
    placed = tuple(Placement(op_id, (i % 2,), 1, float(i), i + 1.0) for i, op_id in enumerate(GRAPH.ids))
    plan, trace = Plan(2, "fifo", placed, 1.0), Trace(2, "fifo", placed)
    with Store.open(folder / "store.sqlite") as store:
        store.add(
            [Measurement(op, MANY, Case(n), (Sample(1e-3 * (i + n)),)) for i, op in enumerate(RELUS) for n in (1, 2)]
        )
        store.add(
            [
                Measurement(
                    m.op, m.machine, m.case, (Sample(2 * m.seconds),), {"time": f"2999-01-0{1 + i % 5}T00:00:00+00:00"}
                )
                for i, m in enumerate(MEASURED)
            ]
        )
        store.add_run("net", MACHINE, plan=plan, trace=trace, time="2026-01-02T03:04:05+00:00")
    with service(folder / "store.sqlite", models_root, log=folder / "log") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    chromium = need("chromium")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: playwright.Browser, host: str) -> Iterator[playwright.Page]:
    """A page that fails its test when anything was said on the console or asked of another host."""
    context = browser.new_context(base_url=host, viewport={"width": 1280, "height": 800})
    opened, watch = context.new_page(), Watch(host)
    watch.on(opened)
    yield opened
    context.close()
    assert (watch.said, watch.elsewhere) == ([], [])


@pytest.fixture
def plain(browser: playwright.Browser, host: str) -> Iterator[playwright.Page]:
    """A page of a browser that runs no scripts."""
    context = browser.new_context(base_url=host, java_script_enabled=False)
    yield context.new_page()
    context.close()


def results(page: playwright.Page) -> list[str]:
    return page.locator("#results tbody th a").all_text_contents()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_every_page_is_quiet_fits_the_window_and_is_accessible(
    browser: playwright.Browser, host: str, scheme: str, width: int
) -> None:
    context = browser.new_context(base_url=host, color_scheme=scheme, viewport={"width": width, "height": 800})
    page, watch, found = context.new_page(), Watch(host), {}
    watch.on(page)
    for path in PAGES:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than the window"
        cut = page.evaluate(CUT_OFF)
        assert cut == [], f"tables of {path} are wider than their place at {width} px"
        page.evaluate(AXE)
        judged = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})")
        found |= {
            f"{path} {v['id']}": [n["html"][:150] + " " + n["failureSummary"][:200] for n in v["nodes"][:3]]
            for v in judged["violations"]
        }
    context.close()
    assert found == {}
    assert (watch.said, watch.elsewhere) == ([], [])


def test_typing_narrows_the_ops_without_loading_the_page_anew(page: playwright.Page) -> None:
    page.goto(f"/ops?machine={MANY.fingerprint}")
    page.evaluate("window.same = true")
    page.get_by_role("searchbox").press_sequentially("item11")
    playwright.expect(page.get_by_role("status")).to_have_text("1–10 of 10 ops")
    assert page.evaluate("window.same")
    assert "q=item11" in page.url
    page.reload()
    assert len(results(page)) == 10


def test_all_can_be_reached_and_done_by_keyboard(page: playwright.Page) -> None:
    page.goto(f"/ops?machine={MANY.fingerprint}")
    page.keyboard.press("Tab")
    playwright.expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    playwright.expect(page.get_by_role("searchbox")).to_be_focused()
    page.get_by_role("link", name="Models").focus()
    page.keyboard.press("/")
    playwright.expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("item0")
    playwright.expect(page.get_by_role("status")).to_contain_text("of 100 ops")
    page.locator("#page-next").focus()
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("status")).to_have_text("51–100 of 100 ops")


def test_without_scripts_all_but_charts_works(plain: playwright.Page) -> None:
    plain.goto(f"/ops?machine={MANY.fingerprint}")
    plain.get_by_role("searchbox").fill("item11")
    plain.get_by_role("button", name="Search").click()
    assert len(results(plain)) == 10
    plain.goto(f"/ops?machine={MANY.fingerprint}")
    plain.get_by_role("link", name="Next").click()
    assert len(results(plain)) == 50
    plain.goto(OP)
    said = plain.locator("noscript:visible").all_inner_texts()  # Playwright's search by text skips these elements
    assert [text.split(";")[0] for text in said] == ["Charts need scripts"]
    plain.goto("/")
    plain.get_by_label("Machine").select_option(MANY.fingerprint)
    plain.get_by_role("button", name="Show").click()
    assert MANY.fingerprint in plain.url
