"""Every study, page by page."""

from __future__ import annotations

from figures import papers, public_models, steps

PAGES = (steps, public_models, papers)
STUDIES = tuple(study for page in PAGES for study in page.STUDIES)
