"""Cores that change while a process runs: by `threadcast resize`, by its container's limits, or by an arbiter.

In a process: `attach` makes a `member`, which decides which cores are used: of those that `limits` allows, those that
the arbiter assigns (`arbiter_link`) and that somebody asked for (`process_socket`). `followers` are what then changes:
`thread_masks`, `library_threads`, `other_threads`, `children`, and through `threads.this_process` optimised models.

In the arbiter: `arbiter` talks with processes (`connection`, `process_watch`, `process_list`); the `ledger` decides,
without clock or sockets: `division` says how many cores each `party` gets, `placement` which, `trials` what to try.

Between them: `messages` as JSON `lines` over a `channel`; `docs/formats.md` lists them.
"""
