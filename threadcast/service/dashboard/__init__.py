"""Pages at `/` for people: what is measured, how models do, what is planned, and which model answers.

Every page is whole without scripts; with them, searching and paging exchange parts of it, and plots can be zoomed.
"""

from threadcast.service.dashboard import comparison, drift, machines, models, networks, op_page, ops, overview
from threadcast.service.dashboard.frame import blueprint

__all__ = ["blueprint", "comparison", "drift", "machines", "models", "networks", "op_page", "ops", "overview"]
