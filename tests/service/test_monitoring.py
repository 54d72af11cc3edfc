"""Alerts and the dashboard name metrics and labels that there are, in expressions that Prometheus can read."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services import need
from threadcast.service.metrics import Metrics

pytestmark = pytest.mark.system

DEPLOY = Path(__file__).parents[2] / "deploy"
SUFFIXES = re.compile(r"_(total|bucket|count|sum)$")
OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus adds."""


def alerts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


def exposed() -> dict[str, set[str]]:
    """The labels of each metric that the service has."""
    found = {}
    for metric in vars(Metrics()).values():
        if hasattr(metric, "describe"):
            (family,) = metric.describe()
            found[family.name] = set(metric._labelnames)
    return found


def test_every_metric_and_label_is_one_of_the_service() -> None:
    known, seen = exposed(), set()
    some = {"threadcast_http_requests", "threadcast_observed_over_predicted", "threadcast_rate_limited_requests"}
    assert some < known.keys()
    for expression in expressions():
        named = {SUFFIXES.sub("", name) for name in re.findall(r"threadcast_\w+", expression)} - {"threadcast"}
        assert named <= known.keys(), expression
        seen |= named
        for name, matchers in re.findall(r"(threadcast_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= known[SUFFIXES.sub("", name)] | OF_TARGETS, expression
        have = set().union(*(known[name] for name in named)) | OF_TARGETS
        if "_bucket" in expression:
            have.add("le")
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert set(re.split(r",\s*", by)) <= have, expression
    assert len(seen) >= 9


def test_prometheus_reads_its_files_and_every_expression(tmp_path: Path) -> None:
    promtool = str(need("promtool"))
    config = (DEPLOY / "compose" / "prometheus.yml").read_text()
    (tmp_path / "key").write_text("tc_example")
    (tmp_path / "prometheus.yml").write_text(config.replace("/run/secrets/metrics_key", str(tmp_path / "key")))
    (tmp_path / "alerts.yml").write_text((DEPLOY / "alerts.yml").read_text())
    check([promtool, "check", "config", str(tmp_path / "prometheus.yml")])
    written = [{"record": f"panel:{i}", "expr": text.replace("$__rate_interval", "5m")}
               for i, text in enumerate(expressions())]  # fmt: skip
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": written}]}))
    check([promtool, "check", "rules", str(tmp_path / "rules.yml")])


def test_alerts_fire_for_what_they_are_meant_for_and_not_otherwise(tmp_path: Path) -> None:
    """By Prometheus' own engine, on series that are written down."""
    promtool = str(need("promtool"))
    (tmp_path / "alerts.yml").write_text((DEPLOY / "alerts.yml").read_text())
    good = 'threadcast_http_requests_total{code="200",job="threadcast"}'
    refused = 'threadcast_http_requests_total{code="429",job="threadcast"}'
    limited = 'threadcast_rate_limited_requests_total{key="ci",job="threadcast"}'
    cases = {
        "ThreadcastErrors": ([(good, "0+600x60"), (good.replace("200", "500"), "0+60x60")], {}),
        "ThreadcastRefusesLoad": ([(refused, "0+60x60"), (limited, "0+30x60")], {}),
        "ThreadcastRateLimited": ([(refused, "0+60x60"), (limited, "0+60x60")], {"key": "ci"}),
        "ThreadcastDown": ([('up{job="threadcast",instance="a"}', "0x60")], {"job": "threadcast", "instance": "a"}),
    }
    tests = []
    for fires, (series, labels) in cases.items():
        given = [{"series": name, "values": values} for name, values in series]
        for alert in cases:
            if alert == "ThreadcastRateLimited" and fires == "ThreadcastRefusesLoad":
                continue  # there it fires, too
            found = {"exp_labels": labels, "exp_annotations": {"summary": summary(alert)}}
            tests.append({"interval": "1m", "input_series": given, "alert_rule_test": [
                {"eval_time": "50m", "alertname": alert, "exp_alerts": [found] if alert == fires else []},
            ]})  # fmt: skip
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}))
    check([promtool, "test", "rules", str(tmp_path / "tests.yml")])


def summary(alert: str) -> str:
    return str(next(rule for rule in alerts() if rule["alert"] == alert)["annotations"]["summary"])


def check(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
