"""Pages kept as they were rendered: an analysis does not change, so many viewers share one rendering."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dash import html

from moescope.views.model import Analysis
from moescope_app.pages import View
from moescope_app.tabs import TABS

MOST_PAGES = 128
Key = tuple[str, str, str, int | None, int | None, int | None]


class Rendered:
    """The latest renderings; each page is rendered by one thread while the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: OrderedDict[Key, tuple[Analysis, html.Div]] = OrderedDict()

    def page(self, tab: str, view: View) -> html.Div:
        """The page ``tab`` of ``view``, from before where the analysis is still the same object."""
        key = (tab, view.slug, view.theme, view.rank, view.layer, view.step)
        with self._lock:
            known = self._pages.pop(key, None)
            page = known[1] if known and known[0] is view.analysis else TABS[tab].render(view)
            self._pages[key] = (view.analysis, page)
            if len(self._pages) > MOST_PAGES:
                self._pages.popitem(last=False)
            return page
