"""Who may ask, and what a page may do: host names, the token, headers."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

from flask import Flask, Response, abort, redirect, request

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
COOKIE = "moescope-token"
OPEN_METHODS = ("GET", "HEAD")


def protect(server: Flask, *, host: str, port: int, token: str | None, script_hashes: Sequence[str]) -> None:
    """Check every request to ``server`` and add headers to every answer.

    A page of another site may neither read nor command the dashboard: the Host header must name this server (which
    stops DNS rebinding), requests from other sites are refused, and where a token is set every request needs it, as
    a cookie that the first visit with ``?token=`` sets.
    """
    names = allowed_hosts(host, port)
    policy = content_policy(script_hashes)

    @server.before_request
    def check() -> Response | None:
        if names is not None and request.headers.get("Host", "").lower() not in names:
            abort(403, "This name does not belong to the dashboard.")
        if _from_another_site():
            abort(403, "Requests from other sites are refused.")
        return _check_token(token) if token else None

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Referrer-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return response


def allowed_hosts(host: str, port: int) -> frozenset[str] | None:
    """Host headers to accept; None accepts any, where the server listens on all addresses and a token protects it."""
    if host in ("0.0.0.0", "::", ""):
        return None
    names = {*LOCAL_NAMES, f"[{host}]" if ":" in host else host.lower()}
    return frozenset(f"{name}:{port}" for name in names) | (frozenset(names) if port == 80 else frozenset())


def content_policy(script_hashes: Sequence[str]) -> str:
    """Only this server's files and the inline scripts with these hashes. Plotly sets styles from its script."""
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' {' '.join(script_hashes)}".rstrip(),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _from_another_site() -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    navigation = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method in OPEN_METHODS
    if site in ("cross-site", "same-site") and not navigation:
        return True
    origin = request.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("Host")


def _check_token(token: str) -> Response | None:
    given = request.args.get("token")
    if given is not None and hmac.compare_digest(given.encode(), token.encode()):
        answer = redirect(request.path)
        answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return answer  # type: ignore[return-value]
    if not hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), token.encode()):
        abort(401, "Open the address that moescope serve printed; it carries the token.")
    return None
