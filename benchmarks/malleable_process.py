"""One training process of `benchmarks/malleable.py`: plain PyTorch, which writes how many steps it has made.

    python benchmarks/malleable_process.py lstm small '{"batch": 8}'

Every tenth of a second a line of JSON: the steps since it began, until its stdin is closed.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import torch

from threadcast import networks

EVERY_S = 0.1


def main() -> None:
    work = networks.load(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
    assert work.loss is not None
    optimizer = torch.optim.SGD(work.model.parameters(), lr=1e-3)
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
    steps, said_s = 0, time.monotonic()
    while not done.is_set():
        optimizer.zero_grad()
        torch.autograd.backward(work.loss(work.model(*work.inputs), work.target))
        optimizer.step()
        steps += 1
        if time.monotonic() - said_s > EVERY_S:
            said_s = time.monotonic()
            print(json.dumps({"steps": steps, "at_s": said_s, "threads": torch.get_num_threads()}), flush=True)


if __name__ == "__main__":
    main()
