"""Bytes that are changed at random, for tests of what reads them."""

from __future__ import annotations

import random
from collections.abc import Sequence


def changed_bytes(data: bytes, rng: random.Random, tokens: Sequence[bytes], *, places: int, most: int) -> bytes:
    """Up to `places` places replaced, cut out, doubled (up to `most` bytes each), given a token, or cut off."""
    content = bytearray(data)
    for _ in range(rng.randint(1, places)):
        at = rng.randrange(len(content) + 1)
        how = rng.randrange(5)
        if how == 0:
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif how == 1:
            del content[at : at + rng.randint(1, most)]
        elif how == 2:
            content[at:at] = content[at : at + rng.randint(1, most)]
        elif how == 3:
            content[at:at] = rng.choice(tokens)
        else:
            del content[at:]
    return bytes(content)
