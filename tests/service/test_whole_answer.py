"""Complete answers have the headers and the bodies that other responses have."""

from __future__ import annotations

from flask.testing import FlaskClient

from tests.service.service_data import OPS

CURVE = f"/v1/curves/{OPS[0].key}"


def test_a_curve_has_its_length_and_each_header_once(client: FlaskClient) -> None:
    found = client.get(CURVE)
    assert found.status_code == 200
    assert int(found.headers["Content-Length"]) == len(found.data)
    names = [name.lower() for name, _ in found.headers]
    assert len(names) == len(set(names))
    assert {"etag", "x-request-id", "server-timing", "content-security-policy"} <= set(names)


def test_head_has_the_headers_of_get_and_no_body(client: FlaskClient) -> None:
    found, whole = client.head(CURVE), client.get(CURVE)
    assert (found.status_code, found.data) == (200, b"")
    assert found.headers["ETag"] == whole.headers["ETag"]
    assert found.headers["Content-Length"] == whole.headers["Content-Length"]


def test_a_curve_that_the_client_has_is_304_without_a_body(client: FlaskClient) -> None:
    etag = client.get(CURVE).headers["ETag"]
    found = client.get(CURVE, headers={"If-None-Match": etag})
    assert (found.status_code, found.data) == (304, b"")
