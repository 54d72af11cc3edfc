"""Tells a watcher of every statement that a database runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event

_TOKEN = "threadcast_statement"


def watch_statements(
    engine: Engine, begin: Callable[[str], object], end: Callable[[Any, BaseException | None], None]
) -> None:
    """Call `begin` with each statement's text, without its values, and `end` with what that returned and any error.

    Both are called in the thread that runs the statement.
    """

    def before(connection: Any, cursor: Any, text: str, values: Any, context: Any, many: bool) -> None:
        setattr(context, _TOKEN, begin(text))

    def after(connection: Any, cursor: Any, text: str, values: Any, context: Any, many: bool) -> None:
        end(getattr(context, _TOKEN), None)

    def failed(found: Any) -> None:
        if hasattr(found.execution_context, _TOKEN):
            end(getattr(found.execution_context, _TOKEN), found.original_exception)

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "after_cursor_execute", after)
    event.listen(engine, "handle_error", failed)
