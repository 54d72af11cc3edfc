"""Every study, page by page."""

from __future__ import annotations

from figures import forecasts, papers, planner, public_models, service, shared_machine, steps

PAGES = (steps, public_models, papers, forecasts, planner, shared_machine, service)
STUDIES = tuple(study for page in PAGES for study in page.STUDIES)
