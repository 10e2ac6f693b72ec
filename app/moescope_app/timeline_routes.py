"""The timeline's routes: every answer is JSON with ``ok``, or a binary tile; unknown parameters are errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from flask import Flask, Response, request

from moescope.views.timeline import Timeline
from moescope.views.timeline.timeline import MOST_BUCKETS, MOST_SHIFT, RowAddress
from moescope_app.runs import Runs

MOST_STRIPS, MOST_ROWS, MOST_WORD = 256, 1024, 200
_NUMBER = re.compile(r"-?\d{1,18}")
_ROW = re.compile(r"(\d{1,9}):([0-9.\-]{1,80}):(\d{1,6})")


class NotYetError(Exception):
    """The run is known but not analysed."""


class BadRequestError(Exception):
    """A parameter that is missing, unknown or out of range."""


Answer = Callable[..., Response]
Route = Callable[..., Callable[[Answer], None]]
Open = Callable[[str], Timeline]


def add_timeline_routes(server: Flask, runs: Runs) -> None:
    """Register the routes."""

    def timeline(slug: str) -> Timeline:
        run = runs.get(slug)
        if run is None:
            raise KeyError(slug)
        if run.analysis is None:
            raise NotYetError
        return runs.timeline(slug)

    def route(path: str, *fields: str) -> Callable[[Answer], None]:
        def register(answer: Answer) -> None:
            server.get(f"/timeline/<slug>/{path}", endpoint=answer.__name__)(_guarded(answer, fields))

        return register

    _add_drawing(route, timeline)
    _add_questions(route, timeline)


def _add_drawing(route: Route, timeline: Open) -> None:
    """What a canvas draws."""

    @route("meta.json")
    def timeline_meta(slug: str) -> Response:
        return _json(timeline(slug).meta())

    @route("lanes/<int:rank>.json")
    def timeline_lanes(slug: str, rank: int) -> Response:
        return _json(timeline(slug).lanes_meta(rank))

    @route("tile.bin", "first", "count", "shift", "strips", "rows")
    def timeline_tile(slug: str) -> Response:
        first, count = _integer("first"), _integer("count", 1, MOST_BUCKETS)
        strips, rows = _listed("strips", ",", MOST_STRIPS), _listed("rows", ";", MOST_ROWS)
        ranks, addresses = [_whole(text) for text in strips], [_address(text) for text in rows]
        tile = timeline(slug).tile(first, count, _integer("shift", 0, MOST_SHIFT), ranks, addresses)
        return Response(tile, mimetype="application/octet-stream")

    @route("links.json", "low", "high", "least")
    def timeline_links(slug: str) -> Response:
        return _json(timeline(slug).links(_integer("low"), _integer("high"), _integer("least", 0)))

    @route("microbatches.json")
    def timeline_microbatches(slug: str) -> Response:
        return _json(timeline(slug).microbatches())


def _add_questions(route: Route, timeline: Open) -> None:
    """What a reader asks of it."""

    @route("range.json", "low", "high")
    def timeline_range(slug: str) -> Response:
        return _json(timeline(slug).range(_integer("low"), _integer("high")))

    @route("slice.json", "row", "position", "step")
    def timeline_slice(slug: str) -> Response:
        place, step = _address(request.args.get("row", "")), _integer("step", -1, 1)
        return _json(timeline(slug).neighbour(place, _integer("position", 0), step))

    @route("at.json", "rank", "at")
    def timeline_at(slug: str) -> Response:
        return _json(timeline(slug).at(_integer("rank", 0), _integer("at")))

    @route("search.json", "q")
    def timeline_search(slug: str) -> Response:
        word = request.args.get("q", "")
        if not 0 < len(word) <= MOST_WORD:
            raise BadRequestError(f"q must have 1 to {MOST_WORD} characters")
        return _json(timeline(slug).search(word))


def _guarded(answer: Callable[..., Response], fields: tuple[str, ...]) -> Callable[..., Response]:
    @wraps(answer)
    def guarded(**path: Any) -> Response:
        unknown = sorted(set(request.args) - set(fields))
        if unknown:
            return _error(400, "unknown-parameter", f"unknown parameter {unknown[0]!r}")
        try:
            return answer(**path)
        except BadRequestError as error:
            return _error(400, "bad-parameter", str(error))
        except NotYetError:
            return _error(202, "not-analysed", "the analysis of this folder has not finished")
        except KeyError as error:
            return _error(404, "not-found", f"there is no {error.args[0]!r} here")

    return guarded


def _json(body: Mapping[str, Any]) -> Response:
    return Response(json.dumps(body, default=str), mimetype="application/json")


def _error(status: int, code: str, message: str) -> Response:
    answer = _json({"ok": False, "error": {"code": code, "message": message}})
    answer.status_code = status
    return answer


def _integer(name: str, low: int = -(1 << 62), high: int = 1 << 62) -> int:
    value = _whole(request.args.get(name, ""))
    if not low <= value <= high:
        raise BadRequestError(f"{name} must be between {low} and {high}")
    return value


def _whole(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise BadRequestError(f"{text!r} is no whole number")
    return int(text)


def _listed(name: str, separator: str, most: int) -> list[str]:
    items = [item for item in request.args.get(name, "").split(separator) if item]
    if len(items) > most:
        raise BadRequestError(f"{name} names more than {most}")
    return items


def _address(text: str) -> RowAddress:
    match = _ROW.fullmatch(text)
    if match is None:
        raise BadRequestError(f"{text!r} names no row")
    return int(match[1]), match[2], int(match[3])
