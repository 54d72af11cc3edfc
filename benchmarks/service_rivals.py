"""What the service is held against: a bare Flask echo, and MLflow's scoring server with an XGBoost model.

python benchmarks/service_rivals.py echo THREADS BYTES [gthread]    serves on a free port, whose URL it prints
python benchmarks/service_rivals.py mlflow-model PATH                   saves the model (with MLflow's own interpreter)
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

TREES, FEATURES = 200, 20
VENV = Path(__file__).parents[1] / "build" / "mlflow"


def serve_echo(threads: int, answer_bytes: int, *, standard: bool) -> None:
    """A Flask application that reads what it was sent and answers `answer_bytes` bytes.

    On the service's own worker; `standard`: on gunicorn's own threaded worker.
    """
    from flask import Flask, request
    from gunicorn.app.base import BaseApplication

    from threadcast.service.worker import Worker

    app, content = Flask("echo"), b"x" * answer_bytes
    app.extensions["threadcast"] = SimpleNamespace(metrics=SimpleNamespace(count_unmatched=lambda *_: None))

    @app.post("/echo")
    def echo() -> bytes:
        request.get_data()
        return content

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    options = {
        "bind": f"fd://{listener.detach()}", "workers": 1, "threads": threads,
        "worker_class": "gthread" if standard else Worker, "keepalive": 5, "loglevel": "error",
        "control_socket_disable": True,
    }  # fmt: skip

    class Echo(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in options.items():
                self.cfg.set(name, value)

        def load(self) -> Flask:
            return app

    Echo().run()


def mlflow_python() -> tuple[Path | None, str]:
    """The interpreter of an environment with MLflow, made under build/ if need be; or None and why there is none."""
    python = VENV / "bin" / "python"
    if not (VENV / ".ready").exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(VENV)],
            [str(python), "-m", "pip", "install", "--quiet", "mlflow", "xgboost", "scikit-learn"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                return None, (done.stderr.strip().splitlines() or ["it failed"])[-1]
        (VENV / ".ready").touch()
    return python, ""


def save_mlflow_model(path: Path) -> None:
    """An XGBoost model of `TREES` trees in MLflow's format."""
    import mlflow.xgboost
    import numpy as np
    import xgboost

    random = np.random.default_rng(0)
    features = random.random((5_000, FEATURES)).astype("float32")
    model = xgboost.XGBRegressor(n_estimators=TREES, max_depth=8, n_jobs=1)
    model.fit(features, features @ random.random(FEATURES))
    mlflow.xgboost.save_model(model, path)


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        serve_echo(int(sys.argv[2]), int(sys.argv[3]), standard="gthread" in sys.argv[4:])
    else:
        save_mlflow_model(Path(sys.argv[2]))
