"""Makes plans for a service process, which ends this one when a plan takes too long.

Reads messages (`plan_message`) from standard input, writes answers to standard output, ends with the input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, BinaryIO

from threadcast.scheduler import planner
from threadcast.service.plan_message import LENGTH_BYTES, framed, read_question

ORPHAN_S = 1.0
"""Seconds between looks whether whoever asked is still there."""


def answer(message: bytes) -> dict[str, Any]:
    """The plan, or what is wrong with the options."""
    problem, policy, options = read_question(message)
    try:
        return {"plan": planner.plan(problem, policy=policy, **options).to_json()}
    except (TypeError, ValueError) as error:
        if isinstance(error, TypeError) and not options:
            raise
        return {"refused": str(error)}


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more questions."""
    while len(head := questions.read(LENGTH_BYTES)) == LENGTH_BYTES:
        message = questions.read(int.from_bytes(head, "big"))
        answers.write(framed(json.dumps(answer(message)).encode()))
        answers.flush()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_S)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    serve(sys.stdin.buffer, sys.stdout.buffer)
