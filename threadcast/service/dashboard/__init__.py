"""Web pages at `/`: measured ops and machines, scores of models, plans of networks, and the model that is in use.

Every page works without scripts. With scripts, searching and paging replace parts of a page, and charts can be zoomed.
"""

from threadcast.service.dashboard import comparison, drift, machines, models, networks, op_page, ops, overview, plans
from threadcast.service.dashboard.frame import blueprint

__all__ = ["blueprint", "comparison", "drift", "machines", "models", "networks", "op_page", "ops", "overview", "plans"]
