"""Requests of one key over time are limited, over all worker processes of a service."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3
from flask.testing import FlaskClient

from tests.service.test_server import LONG_S, running
from threadcast.core.errors import ConfigError, InvalidInput
from threadcast.service.app import Service, create_app
from threadcast.service.keys import add_key
from threadcast.service.rates import Rate, TokenBuckets
from threadcast.service.settings import ServiceSettings


@pytest.mark.parametrize("text", ["", "5", "0/minute", "5/day", "5 /minute", "1000001/hour", "5/minute\n"])
def test_other_rates_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="10/second, 600/minute or 10000/hour"):
        Rate.parse(text)
    with pytest.raises(ConfigError, match=r"service\.rate_limit: the rate"):
        ServiceSettings(store="x", models=tmp_path, rate_limit=text)
    with pytest.raises(InvalidInput):
        add_key(tmp_path / "keys.json", "ci", ["read"], rate_limit=text)
    assert not (tmp_path / "keys.json").exists()


def test_a_bucket_holds_a_period_and_refills_evenly() -> None:
    buckets, rate = TokenBuckets(), Rate(6, 60)
    first = [buckets.take("a", rate, 100.0) for _ in range(7)]
    assert [taken.allowed for taken in first] == [True] * 6 + [False]
    assert [taken.remaining for taken in first] == [5, 4, 3, 2, 1, 0, 0]
    assert [taken.full_in_s for taken in first] == [10, 20, 30, 40, 50, 60, 60]
    assert [taken.retry_in_s for taken in first] == [0, 0, 0, 0, 0, 10, 10]
    assert buckets.take("b", rate, 100.0).allowed  # another caller
    assert not buckets.take("a", rate, 109.9).allowed
    assert buckets.take("a", rate, 110.0).allowed
    assert not buckets.take("a", rate, 110.0).allowed
    assert [buckets.take("a", rate, 1000.0).allowed for _ in range(7)] == [True] * 6 + [False]


def test_over_any_time_a_caller_gets_a_period_and_what_refills() -> None:
    buckets, rate, allowed = TokenBuckets(), Rate(50, 1), 0
    for millisecond in range(10_000):
        allowed += buckets.take("a", rate, millisecond / 1000).allowed
    assert allowed == 50 + 10 * 50 - 1  # the last one refills at 10 s


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    keys = tmp_path / "keys.json"
    own = {"usual": None, "slow": "1/hour", "free": "none"}
    return {name: add_key(keys, name, ["read"], rate_limit=rate) for name, rate in own.items()}


@pytest.fixture
def app(settings: ServiceSettings, tmp_path: Path, tokens: dict[str, str]) -> Iterator[Service]:
    made = create_app(replace(settings, keys=tmp_path / "keys.json", rate_limit="3/hour"))
    yield made
    made.extensions["threadcast"].store.close()


def statuses(client: FlaskClient, token: str, path: str = "/v1/info") -> list[int]:
    return [client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code for _ in range(5)]


def test_each_key_has_the_rate_of_the_service_or_its_own(client: FlaskClient, tokens: dict[str, str]) -> None:
    assert statuses(client, tokens["usual"]) == [200, 200, 200, 429, 429]
    assert statuses(client, tokens["slow"]) == [200, 429, 429, 429, 429]
    assert statuses(client, tokens["free"]) == [200] * 5
    text = client.get("/metrics", headers={"Authorization": f"Bearer {tokens['usual']}"}).text  # is never refused
    assert 'threadcast_rate_limited_requests_total{key="usual"} 2.0' in text
    assert 'threadcast_rate_limited_requests_total{key="slow"} 4.0' in text
    assert client.get("/health/ready").status_code == 200


def test_the_answer_says_how_long_to_wait_and_what_is_left(client: FlaskClient, tokens: dict[str, str]) -> None:
    send = {"Authorization": f"Bearer {tokens['usual']}"}
    answers = [client.get("/v1/info", headers=send) for _ in range(4)]
    assert {answer.headers["RateLimit-Policy"] for answer in answers} == {'"requests";q=3;w=3600'}
    assert [answer.headers["RateLimit"] for answer in answers[:3]] == [
        '"requests";r=2;t=1200', '"requests";r=1;t=2400', '"requests";r=0;t=3600'
    ]  # fmt: skip
    refused = answers[3]
    assert (refused.status_code, refused.content_type) == (429, "application/problem+json")
    assert 1190 <= int(refused.headers["Retry-After"]) <= 1200
    assert refused.headers["RateLimit"].startswith('"requests";r=0;t=')
    unchanged = client.get("/v1/info", headers={"Authorization": f"Bearer {tokens['free']}"})
    assert "RateLimit" not in unchanged.headers


def test_without_keys_an_address_is_limited(settings: ServiceSettings) -> None:
    app = create_app(replace(settings, rate_limit="2/hour"))
    for address in ("192.0.2.1", "192.0.2.2"):
        client = app.test_client()
        found = [client.get("/v1/info", environ_base={"REMOTE_ADDR": address}).status_code for _ in range(3)]
        assert found == [200, 200, 429]
    assert 'threadcast_rate_limited_requests_total{key=""} 2.0' in app.test_client().get("/metrics").text
    app.extensions["threadcast"].store.close()


def test_where_requests_cannot_be_counted_none_is_let_in_and_the_answer_says_so(
    settings: ServiceSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "buckets.sqlite"
    app = create_app(replace(settings, rate_limit="600/minute", rate_buckets=path))
    client = app.test_client()
    assert client.get("/v1/info").status_code == 200
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE buckets")
    refused = client.get("/v1/info")
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
    assert "cannot be counted at the moment" in refused.get_json()["detail"]
    assert "they cannot be counted: no such table: buckets" in caplog.text
    assert client.get("/health/live").status_code == 200
    app.extensions["threadcast"].store.close()


def test_two_workers_count_together(settings: ServiceSettings, tmp_path: Path) -> None:
    store = shutil.copy(settings.store, tmp_path / "served.sqlite")
    (tmp_path / "threadcast.toml").write_text('[service]\nrate_limit = "10/hour"\n')
    with running(replace(settings, store=store), tmp_path, "--workers", "2") as server:
        found = []
        for _ in range(30):  # each on a connection of its own, which any worker may take
            answer = urllib3.request("GET", server.url + "/v1/info", retries=False, timeout=LONG_S)
            found.append(answer.status)
            assert "RateLimit" in answer.headers
        assert (found.count(200), found.count(429)) == (10, 20)
