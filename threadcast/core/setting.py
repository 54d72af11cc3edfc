"""One setting: its type, the values that it allows, and the check of a value."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadcast.core.errors import ConfigError
from threadcast.core.secret import Secret

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_KINDS = {
    str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path",
    Secret: "visible ASCII characters",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, type, default, unit, allowed values and what it does.

    A `default` that is a function is computed from the environment. None stands for "not set" and is
    only ever a default.
    """

    name: str
    kind: type[str] | type[int] | type[float] | type[bool] | type[Path] | type[Secret]
    default: str | float | bool | Callable[[Mapping[str, str]], str | Path] | None
    doc: str
    unit: str = ""
    minimum: float = -math.inf
    maximum: float = math.inf
    default_text: str = ""
    """What documentation shows in place of a default that is computed or None."""

    @property
    def variable(self) -> str:
        """Name of the setting's environment variable."""
        return "THREADCAST_" + self.name.upper().replace(".", "_")

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        words = _KINDS[self.kind]
        if self.minimum > -math.inf:
            words += f" of at least {self.minimum:g}"
        if self.maximum < math.inf:
            words += f"{' and' if self.minimum > -math.inf else ' of'} at most {self.maximum:g}"
        return f"{words} ({self.unit})" if self.unit else words

    @property
    def shown_default(self) -> str:
        """The default as documentation shows it."""
        return self.default_text or str(self.default)

    def check(self, value: Any, *, origin: str, base: Path | None = None) -> Any:
        """Return `value` as this setting's type; ConfigError, naming `origin`, when it is not an allowed value.

        Text from the environment or a flag is converted to the type. A relative path is relative to `base`.
        """
        try:
            converted = _convert(value, self.kind)
        except ValueError:
            raise self._refuse(value, origin) from None
        if isinstance(converted, Path):
            converted = Path(os.path.expanduser(converted))  # which leaves ~nobody as it is, and does not raise
            return base / converted if base else converted
        if isinstance(converted, int | float) and not self.minimum <= converted <= self.maximum:  # also refuses nan
            raise self._refuse(value, origin)
        return converted

    def _refuse(self, value: Any, origin: str) -> ConfigError:
        said = "not shown" if self.kind is Secret else repr(value)
        return ConfigError(f"{origin}: {self.name} is {said}, it must be {self.allowed}")


def _convert(value: Any, kind: type) -> Any:
    if isinstance(value, bool) or kind is bool:
        if isinstance(value, bool) and kind is bool:
            return value
        if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        raise ValueError
    if kind is Secret:
        if not isinstance(value, str | Secret):
            raise ValueError
        return value if isinstance(value, Secret) else Secret(value)
    if kind in (str, Path):
        if not isinstance(value, str | Path) or not str(value):
            raise ValueError
        return kind(value)
    if isinstance(value, str):
        return kind(value)
    if isinstance(value, int) or (kind is float and isinstance(value, float)):
        return kind(value)
    raise ValueError
