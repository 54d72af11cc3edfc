"""The settings of a service: where its data are, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from threadcast.core.errors import ConfigError, InvalidInput
from threadcast.core.setting import Setting
from threadcast.core.settings import SETTINGS, Settings
from threadcast.service.rates import Rate
from threadcast.service.trusted_proxies import networks_of

GRACE_S = 5.0
"""Seconds beyond the deadline that requests under way get, by default, when the service stops: for sending answers."""


FIXED = {
    setting.name: setting
    for setting in (
        Setting("max_body_values", int, 3_000_000, "JSON values in one request body, by its commas and opening "
                "brackets: a decoded value may take a hundred times its bytes.", "values", minimum=1),
        Setting("max_edges", int, 200_000, "Edges in one graph: ten an op.", "edges", minimum=1),
        Setting("max_cases", int, 1_024, "Cases in one request.", "cases", minimum=1),
        Setting("max_points", int, 2_000_000, "Ops times cases in one answer, of some 40 MB as JSON.", "points",
                minimum=1),
        Setting("max_plan_points", int, 5_000_000, "Ops times cases of one plan.", "points", minimum=1),
        Setting("max_page", int, 1_000, "Measurements in one page.", "measurements", minimum=1),
        Setting("max_contexts", int, 16, "Graphs in memory for decisions, in each process: megabytes each.", "graphs",
                minimum=1),
        Setting("max_kept_curves", int, 20_000, "Answered curves in the cache, in each process: kilobytes each.",
                "curves", minimum=1),
        Setting("max_kept_plans", int, 200, "Stored plans that can be asked for again.", "plans", minimum=1),
        Setting("max_kept_contexts", int, 200, "Stored contexts of decisions.", "contexts", minimum=1),
        Setting("max_planners", int, 1, "Planning processes of each worker process, which has a core.", "processes",
                minimum=1),
        Setting("idempotency_s", float, 86_400.0, "How long an Idempotency-Key is remembered: a day, in which a sender "
                "has tried again.", "seconds", minimum=1),
    )
}  # fmt: skip
"""Limits that nobody is to turn: those that can be turned are in `core.settings_table`."""


def _setting(name: str) -> Setting:
    return FIXED.get(name) or SETTINGS[f"service.{name}"]


def _default(name: str) -> Any:
    return _setting(name).default


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of one service process; `core.settings` and `FIXED` have their units, meanings and
    defaults.

    `store` is an SQLAlchemy URL or a path to a SQLite file, `models` the directory of the model registry, `model` the
    alias or "name@version" for requests that name none. `local_only` refuses requests whose Host is not this machine; a
    page of another site can make a browser send such requests (DNS rebinding). ConfigError for a wrong value.
    """

    store: str | Path
    models: Path
    model: str = _default("model")
    max_body_bytes: int = _default("max_body_bytes")
    max_body_values: int = _default("max_body_values")
    max_ops: int = _default("max_ops")
    max_edges: int = _default("max_edges")
    max_cases: int = _default("max_cases")
    max_points: int = _default("max_points")
    max_plan_points: int = _default("max_plan_points")
    max_rows: int = _default("max_rows")
    max_page: int = _default("max_page")
    max_contexts: int = _default("max_contexts")
    max_in_flight: int = _default("max_in_flight")
    max_in_flight_per_key: int = _default("max_in_flight_per_key")
    max_kept_curves: int = _default("max_kept_curves")
    max_kept_plans: int = _default("max_kept_plans")
    max_kept_contexts: int = _default("max_kept_contexts")
    max_planners: int = _default("max_planners")
    deadline_s: float = _default("deadline_s")
    receive_s: float = _default("receive_s")
    idempotency_s: float = _default("idempotency_s")
    grace_s: float | None = None
    """None is `deadline_s` and `GRACE_S` more."""
    trusted_proxies: str = _default("trusted_proxies")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    keys: Path | None = None
    rate_limit: str = _default("rate_limit")
    access_log: bool = _default("access_log")
    log_format: str = _default("log_format")
    rate_buckets: Path | None = None
    """File in which several processes count requests together; None: in the memory of each process."""
    local_only: bool = False
    prior: bool = True
    """Whether the shipped prior forecasts as long as nothing is registered as the default model."""

    def __post_init__(self) -> None:
        for name in _limit_names():
            _setting(name).check(getattr(self, name), origin="ServiceSettings")
        if self.grace_s is not None and self.grace_s < self.deadline_s:
            raise ConfigError(
                f"service.grace_s={self.grace_s:g} is below service.deadline_s={self.deadline_s:g}: requests would be "
                "cut off when the service stops; raise the one or lower the other"
            )
        networks_of(self.trusted_proxies)
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"service.log_format is {self.log_format!r}; it is text or json")
        try:
            Rate.parse(self.rate_limit)
        except InvalidInput as error:
            raise ConfigError(f"service.rate_limit: {error}") from error

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the settings of the service among all settings."""
        names = [name for name in _limit_names() if name not in FIXED]
        own = {name: settings[f"service.{name}"] for name in (*names, "model", *_OTHERS)}
        return cls(store=settings["store"], models=settings["models"], **own)

    @property
    def untrained(self) -> bool:
        """Whether the shipped prior forecasts in place of the default model: `model` is the setting's default, and
        nothing is registered under it (yet)."""
        from threadcast.models.registry import ModelRegistry

        return self.prior and self.model == _default("model") and not ModelRegistry(self.models).is_alias(self.model)

    @property
    def stops_within_s(self) -> float:
        """Seconds that requests under way get when the service stops."""
        return self.deadline_s + GRACE_S if self.grace_s is None else self.grace_s

    def limits(self) -> dict[str, dict[str, Any]]:
        """Return every limit by name, with its value, unit and meaning, as `GET /v1/info` shows them."""
        described = {name: _setting(name) for name in _limit_names()}
        return {
            name: {"value": getattr(self, name), "unit": setting.unit, "meaning": setting.doc}
            for name, setting in described.items()
        }


_OTHERS = (
    "keys", "rate_limit", "access_log", "log_format", "grace_s", "trusted_proxies", "tls_cert", "tls_key",
)  # fmt: skip
"""Settings that are not limits of a request."""


def _limit_names() -> list[str]:
    names = [field.name for field in fields(ServiceSettings)]
    return [name for name in names if name not in _OTHERS and (name.startswith("max_") or name.endswith("_s"))]
