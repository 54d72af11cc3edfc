"""A key that is carried about and never shown."""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import NoReturn, Self

from threadcast.core.errors import InvalidInput

MAX_CHARACTERS = 1024
_VISIBLE = re.compile(rf"[\x21-\x7e]{{1,{MAX_CHARACTERS}}}")


class Secret:
    """Text of visible ASCII that only `reveal` gives; printed, formatted or in a traceback's values it is dots.

    InvalidInput, which does not show it, for anything else: line breaks would end an HTTP header.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not _VISIBLE.fullmatch(text):
            raise InvalidInput(f"a key must be 1 to {MAX_CHARACTERS} visible ASCII characters without spaces")
        self._text = text

    @classmethod
    def read(cls, path: Path) -> Self:
        """The key that a file holds, alone but for white space around it; InvalidInput where it does not."""
        try:
            with path.open(encoding="ascii") as file:
                text = file.read(2 * MAX_CHARACTERS).strip()
            return cls(text)
        except OSError as error:
            raise InvalidInput(f"the key file {path} cannot be read: {error.strerror}") from error
        except ValueError:  # which may quote what it could not decode
            raise InvalidInput(
                f"the key file {path} must hold 1 to {MAX_CHARACTERS} visible ASCII characters and nothing else"
            ) from None

    def reveal(self) -> str:
        """The text itself: for the request, and nothing that is printed."""
        return self._text

    def hidden_in(self, text: str) -> str:
        """`text` with dots wherever it shows this."""
        return text.replace(self._text, "...")

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written to files or sent to processes")
