"""Calls of pages to callbacks: what no page of ours sends is refused before Dash looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Flask, abort, request

CALLS = "/_dash-update-component"
MOST_BYTES = 1 << 20
TEXTS = ("url", "theme", "shown")
"""Components whose values are text."""


def refuse_other_calls(server: Flask, callbacks: Mapping[str, Any]) -> None:
    """Answer 400 to a call that doesn't have the shape of one of ``callbacks``."""
    server.config["MAX_CONTENT_LENGTH"] = MOST_BYTES

    @server.before_request
    def check_call() -> None:
        if request.path == CALLS and request.method == "POST" and not is_call(_body(), callbacks):
            abort(400, "No page of the dashboard asks this.")


def is_call(body: object, callbacks: Mapping[str, Any]) -> bool:
    """Whether ``body`` names a callback and brings what that takes."""
    if not isinstance(body, dict) or not isinstance(body.get("output"), str) or body["output"] not in callbacks:
        return False
    known = callbacks[body["output"]]
    outputs, changed = body.get("outputs"), body.get("changedPropIds", [])
    if not outputs or not all(_is_output(item) for item in (outputs if isinstance(outputs, list) else [outputs])):
        return False
    if not isinstance(changed, list) or not all(isinstance(name, str) and "." in name for name in changed):
        return False
    return all(_are_values(body.get(part, []), known[part]) for part in ("inputs", "state"))


def _are_values(given: object, wanted: list[Mapping[str, str]]) -> bool:
    if not isinstance(given, list) or len(given) != len(wanted):
        return False
    return all(_is_value(value, one) for value, one in zip(given, wanted, strict=True))


def _is_value(given: object, wanted: Mapping[str, str]) -> bool:
    """Whether ``given`` is the value of the property ``wanted``, or a list of them where its id is a pattern."""
    if wanted["id"].startswith("{"):
        return isinstance(given, list) and all(_is_named(item) for item in given)
    if not isinstance(given, dict) or (given.get("id"), given.get("property")) != (wanted["id"], wanted["property"]):
        return False
    value = given.get("value")
    return value is None or isinstance(value, str) or wanted["id"] not in TEXTS


def _is_named(item: object) -> bool:
    """Whether an item of a pattern has an id that names an action of a run, and a value of its kind."""
    if not isinstance(item, dict) or not _is_action(item.get("id")):
        return False
    value = item.get("value")
    return _is_action(value) if item.get("property") == "id" else value is None or isinstance(value, int)


def _is_action(name: object) -> bool:
    return isinstance(name, dict) and all(isinstance(name.get(key), str) for key in ("action", "run", "what"))


def _is_output(item: object) -> bool:
    return isinstance(item, dict) and all(isinstance(item.get(key), str) for key in ("id", "property"))


def _body() -> object:
    try:
        return request.get_json(silent=True)
    except RecursionError:
        return None
