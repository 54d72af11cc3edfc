"""Optional packages and the extra of threadcast that installs each."""

from __future__ import annotations

EXTRAS = {
    "models": ("sklearn", "xgboost", "pandas", "scipy", "joblib", "threadpoolctl"),
    "store": ("sqlalchemy", "alembic", "pyarrow"),
    "postgres": ("psycopg",),
    "service": (
        "flask",
        "apiflask",
        "pydantic",
        "typing_extensions",
        "gunicorn",
        "tornado",
        "prometheus_client",
        "orjson",
        "pythonjsonlogger",
    ),
    "collect": ("torch", "sympy", "pyperf"),
    "backends": ("onnx", "onnxscript", "onnxruntime", "openvino"),
    "plan": ("numba",),
    "fleet": ("dask", "distributed"),
    "all": ("matplotlib",),
}
"""Import names by extra; a package that several extras install is listed under the smallest one."""


def extra_for(package: str | None) -> str | None:
    """The extra that installs the package of this import name ("sklearn.linear_model" too); None if none does."""
    top = (package or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if top in packages), None)
