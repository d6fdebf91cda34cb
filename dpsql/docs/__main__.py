"""python -m dpsql.docs: writes all reference pages."""

from __future__ import annotations

from dpsql.docs import PAGES, REFERENCE

for name, page in PAGES.items():
    (REFERENCE / name).write_text(page(), encoding="utf-8")
