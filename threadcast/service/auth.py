"""Authorization: by keys with scopes where the service has a key file; without one, everything is allowed."""

from __future__ import annotations

import logging
import re

from apiflask import APIFlask
from flask import Flask, g, request

from threadcast.core.errors import ConfigError
from threadcast.service.answers import SCOPE
from threadcast.service.keys import Key, KeyFile
from threadcast.service.problems import Problem
from threadcast.service.request_marks import KEY
from threadcast.service.settings import ServiceSettings

OPEN = frozenset({"operations.live", "operations.ready", "static"})
"""Endpoints that need no key: health checks come from programs that have none."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_BEARER, _BASIC = 'Bearer realm="threadcast"', 'Basic realm="threadcast", charset="UTF-8"'
_HAS_KEYS = "THREADCAST_HAS_KEYS"
_PORT = re.compile(r":[0-9]*$")
_log = logging.getLogger(__name__)


def has_keys(app: Flask) -> bool:
    """Whether `app` asks for keys."""
    return bool(app.config.get(_HAS_KEYS))


def scope_of(app: Flask, endpoint: str | None, method: str) -> str | None:
    """Return the scope that a request needs; None where it needs no key.

    Requests that change something need admin, unless their route says another scope (`answers.answer`).
    """
    if endpoint in OPEN:
        return None
    described = getattr(app.view_functions.get(endpoint or ""), "_spec", {}).get("extensions") or {}
    return described.get(SCOPE) or ("read" if method in SAFE else "admin")


def owned(idempotency_key: str) -> str:
    """Return the idempotency key as it is stored: with the API key's name, so that two clients can use the same one."""
    key: Key | None = g.get("key")
    return idempotency_key if key is None else f"{key.name}\n{idempotency_key}"


def mover() -> str:
    """Return who makes the current request, for the history of an alias: "key NAME", or "service" without keys."""
    key: Key | None = g.get("key")
    return "service" if key is None else f"key {key.name}"


def install(app: APIFlask, settings: ServiceSettings) -> None:
    """Make `app` refuse requests without an API key that allows them; ConfigError for a wrong key file.

    Without a key file, and with `settings.local_only`, it refuses requests that name another host than this machine.
    """
    keys = None if settings.keys is None else KeyFile(settings.keys)
    app.config[_HAS_KEYS] = keys is not None

    def authorise() -> None:
        if keys is None:
            if settings.local_only and _PORT.sub("", request.host.lower()) not in LOCAL:
                raise Problem(
                    421, "without keys this service answers to localhost only", pointer="/Host", where="header"
                )
            return
        scope = scope_of(app, request.endpoint, request.method)
        if scope is None:
            return
        g.key = _key(keys)
        request.environ[KEY] = g.key.name
        if not g.key.allows(scope):
            raise Problem(
                403, f"this takes a key with the scope {scope}; {g.key.name!r} has {', '.join(g.key.scopes)}",
                pointer="/Authorization", where="header",
                headers=[("WWW-Authenticate", f'{_BEARER}, error="insufficient_scope", scope="{scope}"')],
            )  # fmt: skip

    app.before_request(authorise)


def _key(keys: KeyFile) -> Key:
    token = _token()
    try:
        key = keys.find(token) if token else None
    except ConfigError as error:
        _log.error("nobody is let in: %s", error)
        raise Problem(503, "the keys cannot be read at the moment", headers=[("Retry-After", "10")]) from error
    if key is None:
        invalid = ', error="invalid_token"' if token else ""
        challenges = [("WWW-Authenticate", _BEARER + invalid)]
        if request.method in SAFE:
            challenges.append(("WWW-Authenticate", _BASIC))
        why = "this key is not known here (any more)" if token else "send a key as Authorization: Bearer tc_..."
        raise Problem(401, why, pointer="/Authorization", where="header", headers=challenges)
    return key


def _token() -> str:
    """Return the API key in the request, "" where there is none.

    A password that a browser sends counts for reading only, because other sites can make the browser send it.
    """
    sent = request.authorization
    if sent is None:
        return ""
    if sent.type == "bearer":
        return sent.token or ""
    return sent.password or "" if sent.type == "basic" and request.method in SAFE else ""
