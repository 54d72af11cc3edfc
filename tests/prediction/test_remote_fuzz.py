"""Two thousand answers with something changed: a table of the right shape comes, by the service or the fallback."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from tests.mutation import changed_bytes
from tests.prediction.predicting import MACHINE, OPS, answer_of, local
from threadcast.core.errors import ServiceError
from threadcast.prediction.answers import max_answer_bytes, read_curves
from threadcast.prediction.questions import Questions

KEYS = [op.key for op in OPS]
DOCUMENT = answer_of(local(), json.loads(Questions(MACHINE, None).request(OPS).body))
CONTENT = json.dumps(DOCUMENT).encode()
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, -0.0, 1e-320, 1e308, 10**30, 10**400, "", "learned", "0.5", "\x00", "x" * 5000, [], {},
    [[]], [None], {"a": 1}, [[1.0] * 4] * 3, [[[1.0]]],
)  # fmt: skip
TOKENS = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"\xff",
    b"\x00",
    b"[" * 2000,
    b'"',
    b"\\u0000",
    b"{}",
    b",",
)


def mutated_document(rng: random.Random) -> bytes:
    """Some member, at any depth, is replaced, removed, doubled or added."""
    document = json.loads(CONTENT)
    for _ in range(rng.randint(1, 3)):
        node: Any = document
        while True:
            places = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not places:
                break
            place = rng.choice(places)
            if isinstance(node[place], list | dict) and rng.random() < 0.7:
                node = node[place]
                continue
            how = rng.randrange(4)
            if how == 0:
                del node[place]
            elif how == 1 and isinstance(node, list):
                node.append(node[place])
            elif how == 2 and isinstance(node, dict):
                node[str(place) + "x"] = rng.choice(VALUES)
            else:
                node[place] = rng.choice(VALUES)
            break
    return json.dumps(document).encode()


def mutated_bytes(rng: random.Random) -> bytes:
    """Bytes are changed, cut out, doubled or put in."""
    return changed_bytes(CONTENT, rng, TOKENS, places=4, most=200)


@pytest.mark.parametrize("mutated", [mutated_document, mutated_bytes])
def test_a_changed_answer_is_refused_or_a_table_of_finite_times(mutated: Any) -> None:
    rng = random.Random(7)
    refused = 0
    for number in range(1000):
        content = mutated(rng)[: max_answer_bytes(len(OPS), 4)]
        try:
            _, table, _ = read_curves(content, keys=KEYS, cases=MACHINE.cases(), machine=MACHINE)
        except ServiceError:
            refused += 1
            continue
        assert table.seconds.shape == (3, 4), number
        for array in (table.seconds, table.low, table.high):
            assert array.dtype == np.float64
            assert np.all(np.isfinite(array))
            assert np.all(array >= 0)
        assert np.all((table.source >= 0) & (table.source < 4))
        assert 0 < len(table.model) <= 200
    assert refused > 500
