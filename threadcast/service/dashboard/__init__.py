"""Web pages at `/`: measured ops and machines, scores of models, plans of networks, and the model that is in use.

Every page works without scripts, but for its charts, whose figures are in tables. With scripts, searching and paging
replace parts of a page.
"""

from threadcast.service.dashboard import drift, machines, models, networks, op_page, ops, overview, plans
from threadcast.service.dashboard.frame import blueprint

__all__ = ["blueprint", "drift", "machines", "models", "networks", "op_page", "ops", "overview", "plans"]
