"""A headless Chromium for tests marked ``browser``; skips where the distribution's package is absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt-get install chromium)")


@dataclass
class Watched:
    """A page with what it asked for and complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def _failed(watched: Watched, request: Request) -> None:
    """What a navigation or a download cuts short is no complaint."""
    if "ERR_ABORTED" not in (request.failure or ""):
        watched.complaints.append(f"failed: {request.url} {request.failure}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser, for the tests of one module."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def fresh_page(browser: Browser, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Watched]:
    """A page without history; console warnings and errors, page errors and dialogs are complaints."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.set_default_timeout(60_000)  # a machine may have much else to do
    watched = Watched(page)
    page.on("request", lambda request: watched.requests.append(request.url))
    page.on("pageerror", lambda error: watched.complaints.append(f"error: {error}"))
    page.on("requestfailed", lambda request: _failed(watched, request))
    page.on("dialog", lambda dialog: (watched.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda message: _said(watched, message))
    try:
        yield watched
    finally:
        context.close()


def _said(watched: Watched, message: ConsoleMessage) -> None:
    if message.type in ("error", "warning"):
        watched.complaints.append(f"{message.type}: {message.text}")
