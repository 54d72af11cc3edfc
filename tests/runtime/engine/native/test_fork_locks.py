"""A process that is forked while another thread is within a step knows nothing of it, and waits for nothing."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing

import pytest
import torch

from tests.runtime.compiler import needs_compiler
from tests.runtime.engine.native.test_turns import CPUS, LONG_S, engine_on
from tests.runtime.failing_op import at_checkpoints
from threadcast.runtime.engine.native.library import native_library


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_no_thread_is_pinned_in_a_forked_process() -> None:
    library, within, over = native_library(), threading.Event(), threading.Event()
    pinned: list[int] = []

    def hold(_: torch.Tensor) -> None:
        pinned.append(threading.get_native_id())
        within.set()
        over.wait(LONG_S)

    with closing(engine_on(CPUS[:1])) as engine, at_checkpoints(hold):
        thread = threading.Thread(target=lambda: engine.run(engine.captured.bind(torch.ones(3))))
        thread.start()
        try:
            assert within.wait(LONG_S)
            assert library.is_pinned(pinned[0])[0]
            child = os.fork()
            if child == 0:
                try:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(int(LONG_S))
                    os._exit(int(library.is_pinned(pinned[0])[0]))
                finally:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            over.set()
            thread.join()
