"""Pages at `/` for people: what is measured, how models do, what is planned, and which model answers.

Every page works without scripts. With them, searching and paging replace parts of it, and charts can be zoomed.
"""

from threadcast.service.dashboard import comparison, drift, machines, models, networks, op_page, ops, overview
from threadcast.service.dashboard.frame import blueprint

__all__ = ["blueprint", "comparison", "drift", "machines", "models", "networks", "op_page", "ops", "overview"]
