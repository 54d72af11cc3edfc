"""Built-in models keep the promises of PerformanceModel; of regressors, which share code, one a way of storing."""

from tests.models.model_contract import PerformanceModelContract
from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Machine
from threadcast.models import registry_of_kinds

MACHINE = Machine.uniform("four", 4, group_size=2)
REGRESSORS = ("ols", "svr_poly", "mlp_lbfgs", "k_neighbors", "random_forest")
"""A regressor of each family of files."""


class _BuiltIn(PerformanceModelContract):
    name = ""

    @classmethod
    def make_model(cls):
        options = {"samples": 2} if cls.name in REGRESSORS else {}
        return registry_of_kinds.create(cls.name, **options)

    @classmethod
    def make_measurements(cls):
        return measure_all(make_ops(24), machine=MACHINE)


for _name in registry_of_kinds.names():
    if _name in registry_of_kinds.REGRESSORS and _name not in REGRESSORS:
        continue
    globals()[f"Test_{_name}"] = type(f"Test_{_name}", (_BuiltIn,), {"name": _name, "__module__": __name__})
