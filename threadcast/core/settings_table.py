"""The table of settings: every setting's name, type, default, unit and meaning. `core.settings` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from threadcast.core.secret import Secret
from threadcast.core.setting import Setting
from threadcast.core.user_directories import user_cache_dir, user_data_dir, user_runtime_dir

STEPS = 10_000
"""Default of `train.steps`: about two epochs of ImageNet's 1.28 million images in batches of 256, or an hour of
training at 0.4 s a step."""

SETTINGS: Mapping[str, Setting] = MappingProxyType({
    setting.name: setting
    for setting in (
        Setting(
            "store", str, lambda env: f"sqlite:///{quote(bytes(user_data_dir(env) / 'threadcast.db'))}",
            "Where measurements live, as an SQLAlchemy URL.", default_text="threadcast.db in the user's data directory",
        ),
        Setting(
            "models", Path, lambda env: user_data_dir(env) / "models",
            "Directory of the registered models.", default_text="models in the user's data directory",
        ),
        Setting(
            "corun", Path, lambda env: user_data_dir(env) / "corun",
            "Directory of slow-downs that ops that run side by side have shown.",
            default_text="corun in the user's data directory",
        ),
        Setting("store.keep_days", float, None, "Age from which on `threadcast db prune` deletes measurements, except "
                "the newest of an op in a case on a machine.", "days", minimum=0.001, maximum=36_500,
                default_text="none: for ever"),
        Setting(
            "engine.cache", Path, lambda env: user_cache_dir(env) / "native",
            "Directory of the compiled native engine, fused operators, and what libraries answered.",
            default_text="native in the user's cache directory",
        ),
        Setting(
            "engine.plans", Path, lambda env: user_cache_dir(env) / "plans",
            "Directory of the plans that optimised calls have found.",
            default_text="plans in the user's cache directory",
        ),
        Setting("engine.fuse", bool, True, "Whether optimised calls try fused point-wise operators, and operators of "
                "threadcast that are faster; and optimizers PyTorch's fused kernels."),
        Setting("engine.feedback", str, "local", "Where optimised steps store how long operators took, to plan others "
                "from it: local (the setting store), off, the SQLAlchemy URL of another store, or the http(s) URL of a "
                "service, which is sent what the local store gets and asked what that does not know (with "
                "predictor.key, if it is predictor.url)."),
        Setting("engine.tuning_share", float, 0.05, "Share of the time since the first call that learning may lose "
                "against PyTorch, beside 1.5 to 3 seconds, which rise with the time of calls; 1 is any time.",
                minimum=0, maximum=1),
        Setting("engine.most_bytes", int, 2**30, "Memory that an optimised function or step may use for its graphs and "
                "plans of kinds of calls (shapes, types, modes); those used least recently are dropped.", "bytes",
                minimum=0),
        Setting("engine.least_step_us", float, 100.0, "Calls that take less time in PyTorch are left to it; with 1e12 "
                "all are.", "microseconds", minimum=0),
        Setting("engine.verify_every", int, 0, "One of so many optimised steps is also run by PyTorch, on copies of "
                "the same state, and compared with it; 0 is never.", "steps", minimum=0),
        Setting("engine.compile_timeout_s", float, 600.0, "Longest time that compiling the native engine may take.",
                "seconds", minimum=1),
        Setting(
            "cores", int, None, "Cores to use.", "cores", minimum=1,
            default_text="all that this process may use",
        ),
        Setting("profile.budget_s", float, 0.15, "Mean time for one op in one case; larger parts of a step get more.",
                "seconds", minimum=0.001),
        Setting("profile.enough", float, 0.02, "Expected regret of the chosen cases, as a share of the best cases' "
                "time, at which a profile that follows a model ends.", minimum=0.0001, maximum=10),
        Setting("profile.check", int, 5, "Ops whose chosen case is checked by up to three more measurements each, when "
                "a profile that follows a model ends.", minimum=0, maximum=10_000),
        Setting("profile.max_age_days", float, 30.0, "Age from which on stored measurements are made again.",
                "days", minimum=0.0, maximum=36_500),
        Setting(
            "profile.tolerance", float, 0.02,
            "Half-width of the interval around each median, relative to the median, at which timing stops.",
            minimum=0.0001, maximum=1,
        ),
        Setting("train.jobs", int, None, "Models fitted at the same time.", minimum=1,
                default_text="one a usable core"),
        Setting("train.steps", int, STEPS, "Runs of each op over which measuring must pay off: the champion is the "
                "model with which these runs, and the measuring before them, take the least time.", minimum=1),
        Setting("service.host", str, "127.0.0.1", "Address that the prediction service listens on."),
        Setting("service.port", int, 8321, "Port of the prediction service; 0 selects a free one.", minimum=0,
                maximum=65535),
        Setting("service.model", str, "champion", "Alias or name@version of the model for requests that name none."),
        Setting("service.workers", int, 1, "Worker processes.", "processes", minimum=1, maximum=64),
        Setting("service.threads", int, 16, "Threads of each worker process.", "threads", minimum=1, maximum=256),
        Setting("service.max_body_bytes", int, 32 << 20, "Longest request body.", "bytes", minimum=1),
        Setting("service.max_ops", int, 20_000, "Ops in one request or graph.", "ops", minimum=1),
        Setting("service.max_rows", int, 200_000, "Samples in one request that stores them.", "samples", minimum=1),
        Setting("service.max_in_flight", int, 15, "Concurrent requests, in each process; more get 429. Always fewer "
                "than threads.", "requests", minimum=1),
        Setting("service.max_in_flight_per_key", int, 12, "Concurrent requests of one API key, in each process; more "
                "get 429. Always two fewer than threads.", "requests", minimum=1),
        Setting("service.deadline_s", float, 30.0, "Longest time that a request may take; then it is stopped.",
                "seconds", minimum=0.001),
        Setting("service.receive_s", float, 10.0, "Longest time that a request may take to arrive.", "seconds",
                minimum=0.1),
        Setting("service.grace_s", float, None, "Longest time that requests under way get when the service stops; at "
                "least service.deadline_s.", "seconds", minimum=0.001, default_text="service.deadline_s and 5 more"),
        Setting("service.trusted_proxies", str, "none", "Addresses or networks, separated by commas, of the proxies "
                "whose X-Forwarded-* headers are believed.", default_text="none"),
        Setting("service.tls_cert", Path, None, "File of the certificate chain (PEM) with which the service speaks "
                "TLS.", default_text="none: it speaks plain HTTP"),
        Setting("service.tls_key", Path, None, "File of the certificate's key (PEM).",
                default_text="none: the key is in service.tls_cert"),
        Setting("service.keys", Path, None, "File of the API keys (`threadcast keys`).",
                default_text="none: whoever can reach it may do everything"),
        Setting("service.rate_limit", str, "none", "Requests of one API key over time, such as 10/second, 600/minute "
                "or 10000/hour; more get 429. A key may have its own (`threadcast keys add --rate-limit`). Without "
                "keys, of one address.", default_text="none"),
        Setting("service.access_log", bool, False, "Whether the log has a line for each request."),
        Setting("service.log_format", str, "text", "Form of the log on stderr: text or json."),
        Setting(
            "arbiter.socket", Path, lambda env: user_runtime_dir(env) / "arbiter.sock",
            "Socket of the daemon that divides the cores among processes.",
            default_text="arbiter.sock in the user's runtime directory",
        ),
        Setting("malleable.name", str, None, "Name of this process in `threadcast top`.",
                default_text="the program's name"),
        Setting("malleable.weight", float, 1.0, "Weight of this process's progress when cores are divided.",
                minimum=0.001, maximum=1000),
        Setting("malleable.least", int, 1, "Fewest cores that this process gets.", "cores", minimum=1),
        Setting("malleable.most", int, None, "Most cores that this process gets.", "cores", minimum=1,
                default_text="all there are"),
        Setting("predictor.url", str, None, "Prediction service that schedulers ask.", default_text="none: in process"),
        Setting("predictor.deadline_s", float, 1.0, "Longest wait for the service before the local model answers.",
                "seconds", minimum=0.001),
        Setting("predictor.key", Secret, None, "API key that is sent to the service.", default_text="none"),
        Setting("predictor.key_file", Path, None, "File with the API key that is sent to the service.",
                default_text="none"),
    )
})  # fmt: skip
"""Every setting by name; any other name is an error."""
