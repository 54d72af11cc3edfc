"""One training process of `benchmarks/malleable.py`, which writes how many steps it has made.

    python benchmarks/malleable_process.py lstm small '{"batch": 8}' [optimised]

Plain PyTorch, or by `threadcast.optimize_training`.

Every tenth of a second a line of JSON: the steps since it began, until its stdin is closed.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import torch

import threadcast
from threadcast import networks

EVERY_S = 0.1


def main() -> None:
    work = networks.load(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
    assert work.loss is not None
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()

    def eager() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(work.loss(work.model(*work.inputs), work.target))
        optimizer.step()

    def optimised() -> None:
        step(*work.inputs, work.target)

    step = threadcast.optimize_training(work.model, work.loss, optimizer) if "optimised" in sys.argv else None
    train = eager if step is None else optimised
    steps, said_s = 0, time.monotonic()
    while not done.is_set():
        train()
        steps += 1
        if time.monotonic() - said_s > EVERY_S:
            said_s = time.monotonic()
            print(json.dumps({"steps": steps, "at_s": said_s, "threads": torch.get_num_threads()}), flush=True)


if __name__ == "__main__":
    main()
