"""Every study, page by page."""

from __future__ import annotations

from figures import steps

PAGES = (steps,)
STUDIES = tuple(study for page in PAGES for study in page.STUDIES)
