"""A secret text, such as an API key, that is passed on but never shown in output."""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import NoReturn, Self

from threadcast.core.errors import InvalidInput

MAX_CHARACTERS = 1024
_VISIBLE = re.compile(rf"[\x21-\x7e]{{1,{MAX_CHARACTERS}}}")


class Secret:
    """A text of visible ASCII that only `reveal` returns; printed, formatted or in a traceback it is shown as dots.

    InvalidInput for any other characters, because line breaks would end an HTTP header; the message does not show the
    text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        if not _VISIBLE.fullmatch(text):
            raise InvalidInput(f"a key must be 1 to {MAX_CHARACTERS} visible ASCII characters without spaces")
        self._text = text

    @classmethod
    def read(cls, path: Path) -> Self:
        """The key in a file that holds nothing else but white space around it; InvalidInput for any other file."""
        try:
            with path.open(encoding="ascii") as file:
                text = file.read(2 * MAX_CHARACTERS).strip()
            return cls(text)
        except OSError as error:
            raise InvalidInput(f"the key file {path} cannot be read: {error.strerror}") from error
        except ValueError:  # its message may quote the text
            raise InvalidInput(
                f"the key file {path} must hold 1 to {MAX_CHARACTERS} visible ASCII characters and nothing else"
            ) from None

    def reveal(self) -> str:
        """The text itself: for a request, never for output."""
        return self._text

    def hidden_in(self, text: str) -> str:
        """`text` with dots in place of the secret."""
        return text.replace(self._text, "...")

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written to files or sent to processes")
