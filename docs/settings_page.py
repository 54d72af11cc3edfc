"""The site's page of all settings, made from their table."""

from __future__ import annotations

from itertools import groupby

from threadcast.core.setting import Setting
from threadcast.core.settings_table import SETTINGS

HEAD = """# Settings

Each setting is a flag of the commands that use it, a variable of the environment (`service.port` is
`THREADCAST_SERVICE_PORT`), or a line of `threadcast.toml`:

```toml
[service]
port = 8321
```

A flag beats the environment, which beats `threadcast.toml` in the current directory (or the file that `--config` or
`THREADCAST_CONFIG` names), which beats the user's own `~/.config/threadcast/threadcast.toml` (`$XDG_CONFIG_HOME`). In a
file that sets `store`, settings below it are quoted: `"store.keep_days" = 90`.

An unknown name or a value that is not allowed is an error, also in a variable that begins with `THREADCAST_`. Besides
those below there is `THREADCAST_DATA`, the `data/` folder of a checkout. Settings are read when a command starts,
when a model is given to `optimize` or `optimize_training`, in the first call of what `torch.compile` returned, and in
`threadcast.attach`.

The user's data directory is `$XDG_DATA_HOME/threadcast`, else `~/.local/share/threadcast`; the cache directory is
`$XDG_CACHE_HOME/threadcast`, else `~/.cache/threadcast`; the runtime directory is `$XDG_RUNTIME_DIR/threadcast`, else
`/tmp/threadcast-UID`.
"""


def render() -> str:
    """The page as Markdown, a table for each part of the program."""
    parts = [HEAD]
    for name, settings in groupby(sorted(SETTINGS.values(), key=_part), key=_part):
        rows = [f"| `{s.name}` | {s.doc} | {s.allowed} | {s.shown_default} |" for s in settings]
        head = f"## {name.capitalize()}\n\n| setting | meaning | allowed | default |\n|---|---|---|---|\n"
        parts.append(head + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _part(setting: Setting) -> str:
    """What is before the dot, where that has several settings."""
    part = setting.name.partition(".")[0]
    return part if any(name.startswith(f"{part}.") for name in SETTINGS) else "files and cores"
