"""Cores that change while a process runs: by `threadcast resize`, by its container's limits, or by an arbiter.

In a process: `attach` makes a `member`, which decides which cores the process uses. Of the cores that `limits` allows,
these are the cores that the arbiter assigns (`arbiter_link`), and of these the cores that somebody asked for
(`process_socket`). When they change, `followers` adapts the process: `thread_masks`, `family_masks`,
`library_threads`, `other_threads`, and, through `threads.this_process`, optimised models. A program that knows nothing
of this has a `keeper` in another process in their place.

In the arbiter: `arbiter` talks with processes (`connection`, `process_watch`), and `request_handling`
carries out what they ask. The `ledger` decides, without clock or sockets: `division` finds how many cores each process
(a `party`) gets, `placement` finds which, and `trials` proposes divisions to try.

Between them: `messages` as JSON `lines` over a `channel`; `docs/formats.md` lists the messages.
"""
