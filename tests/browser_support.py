"""A headless Chromium for tests marked ``browser``; skips where the distribution's package is absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")


@dataclass
class Watched:
    """A page with what it asked for and complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def chromium_page(*, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Watched]:
    """A fresh page; console warnings and errors, page errors and dialogs are complaints."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            watched = Watched(context.new_page())
            page = watched.page
            page.on("request", lambda request: watched.requests.append(request.url))
            page.on("pageerror", lambda error: watched.complaints.append(f"error: {error}"))
            page.on("requestfailed", lambda request: watched.complaints.append(f"failed: {request.url}"))
            page.on("dialog", lambda dialog: (watched.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            page.on(
                "console",
                lambda message: (
                    watched.complaints.append(f"{message.type}: {message.text}")
                    if message.type in ("error", "warning")
                    else None
                ),
            )
            yield watched
        finally:
            browser.close()
