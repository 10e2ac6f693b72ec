"""What can be wrong with one file, in words, and how often each was met."""

from __future__ import annotations

from dataclasses import dataclass, field

from moescope.trace.model import Problem

_GONE = "their time and their communication are missing from every sum"
_DOUBTFUL = (
    "from the damage on, which may lie anywhere before the place where it was noticed, events are missing or hold "
    "wrong values: times, waits and sums may be wrong"
)
_CUT = "what came after is missing: times, waits and sums cover only the part before"


@dataclass(frozen=True, slots=True)
class Sort:
    """One sort of fault."""

    what: str
    effect: str
    loses_data: bool


SORTS: dict[str, Sort] = {
    "truncated": Sort("the file ends inside the list of events", _CUT, True),
    "gzip-damaged": Sort("the compressed stream is damaged", _DOUBTFUL, True),
    "dropped-events": Sort("events that cannot be read as JSON", _GONE, True),
    "not-an-event": Sort("elements of the event list that are no objects", _GONE, True),
    "no-start": Sort("complete events without a usable timestamp", _GONE, True),
    "bad-duration": Sort(
        "durations that are missing, negative or overflowed",
        "counted as events of zero length, so their time is missing from every sum",
        True,
    ),
    "unknown-phase": Sort("events without a phase (ph) that the format knows", _GONE, True),
    "unpaired": Sort(
        "events that begin or end a range (ph B, E) without their partner",
        "the ranges are missing from every sum",
        True,
    ),
    "odd-fields": Sort("events with fields of a wrong type", "these fields were left out", True),
    "no-name": Sort("complete events without a name", "what they did is unknown: a kernel counts as compute", True),
    "no-thread": Sort(
        "complete events without a process or a thread", "what ran inside them or launched from them is unknown", True
    ),
    "bad-memory": Sort("memory events without a usable timestamp", "the memory curve lacks them", True),
    "junk": Sort("bytes between events that belong to none", "what they were is lost", True),
    "metadata-damaged": Sort(
        "the metadata around the events is not valid JSON",
        "rank, host, device or process groups may be missing",
        True,
    ),
    "odd-metadata": Sort(
        "values around the events that cannot be what they stand for",
        "they were left out, or bad characters replaced",
        True,
    ),
    "oversized": Sort(
        "events or metadata longer than 64 MiB", "their middle was left out: what they held is missing", True
    ),
    "long-texts": Sort(
        "names longer than 64 KiB or shapes and types longer than 1 MiB",
        "the names were cut, the others left out",
        True,
    ),
    "out-of-range": Sort(
        "counts, sizes or ranks of communication and memory that nothing can have",
        "these values were left out, and the bytes of their events with them",
        True,
    ),
    "key-damaged": Sort(
        "the key traceEvents is missing; the first list that looks like events was read",
        "rank, host, device or process groups may be missing",
        True,
    ),
    "bad-base": Sort(
        "baseTimeNanoseconds is no time", "times count from zero: they cannot be compared with other ranks", True
    ),
    "no-events": Sort("no complete events in the file", "this rank is missing from every sum", True),
    "repaired": Sort("events repaired", "names of these events may differ from what was recorded", False),
    "not-a-number": Sort("values that are NaN or infinite", "these values were left out", False),
    "bad-utf8": Sort("strings that are not valid UTF-8", "the bad bytes read as U+FFFD", False),
    "separators": Sort(
        "commas or brackets too many or too few between events", "no effect: the events were read", False
    ),
    "early-kernels": Sort(
        "device events that start before the call that launched them",
        "recorded times are kept; the delay from launch to start counts as zero",
        False,
    ),
    "unknown-category": Sort(
        "complete events of a category that the pattern table does not know",
        "kept as category other: in no sum",
        False,
    ),
}


@dataclass(slots=True)
class Faults:
    """The faults of one file."""

    counts: dict[str, int] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """What is worth knowing and takes nothing from the answer."""

    def note(self, code: str, where: str = "", count: int = 1, detail: str = "") -> None:
        """Count ``count`` faults of sort ``code``; the first one's place and detail are kept."""
        self.counts[code] = self.counts.get(code, 0) + count
        self.where.setdefault(code, where)
        if detail:
            self.details.setdefault(code, detail)

    def copy(self) -> Faults:
        """The same faults, to be added to apart."""
        return Faults(dict(self.counts), dict(self.where), dict(self.details), list(self.remarks))

    def problems(self, file: str, rank: int | None) -> list[Problem]:
        """The faults as problems of ``file``, each with its effect on the answer."""
        return [self._problem(code, file, rank) for code in self.counts]

    def _problem(self, code: str, file: str, rank: int | None) -> Problem:
        sort, count = SORTS[code], self.counts[code]
        detail = f" ({self.details[code]})" if code in self.details else ""
        return Problem(
            file=file,
            rank=rank,
            what=f"{count:,} x {sort.what}{detail}" if count > 1 else f"{sort.what}{detail}",
            effect=sort.effect,
            count=count,
            where=self.where[code],
            code=code,
            loses_data=sort.loses_data,
        )
