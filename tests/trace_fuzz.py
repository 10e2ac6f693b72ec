"""Damage to a trace's bytes, as disks, transfers, crashed writers and careless scripts do it; seeded."""

import random
import re
from collections.abc import Callable

_FIELD = re.compile(rb'"(?:ts|dur|pid|tid|ph|cat|name|args)":\s*("[^"]*"|[-\d.]+)')
_VALUES = (
    b"NaN",
    b"-5",
    b"1e999",
    b"18446744073709551615",
    b"null",
    b'""',
    b"[]",
    b"{}",
    b"true",
    b"-Infinity",
    b"9" * 30,
)
_TOKENS = (b'"', b"\\", b",", b"{", b"}", b"[", b"]", b"\x01", b"NaN", b"\xff", b"},{", b"\n", b"null", b'"ph"')


def _flip(data: bytearray, random_: random.Random) -> None:
    for _ in range(random_.choice((1, 1, 3, 20))):
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _cut(data: bytearray, random_: random.Random) -> None:
    del data[random_.randrange(len(data)) :]


def _delete(data: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(data))
    del data[at : at + random_.choice((1, 2, 10, 200, 5000))]


def _swap(data: bytearray, random_: random.Random) -> None:
    size = min(random_.choice((1, 50, 2000)), len(data) // 3)
    one, two = sorted(random_.randrange(len(data) - size) for _ in range(2))
    if two >= one + size:
        data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]


def _insert(data: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(data))
    data[at:at] = random_.randbytes(random_.choice((1, 4, 100)))


def _blank(data: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(data))
    end = min(len(data), at + random_.choice((1, 64, 512, 4096)))
    data[at:end] = bytes(end - at)


def _token(data: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(data))
    data[at:at] = random_.choice(_TOKENS)


def _value(data: bytearray, random_: random.Random) -> None:
    fields = list(_FIELD.finditer(bytes(data)))
    if not fields:
        return
    match = random_.choice(fields)
    data[match.start(1) : match.end(1)] = random_.choice(_VALUES)


def _repeat(data: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(data))
    data[at:at] = data[at : at + random_.choice((100, 20_000))]


def _noise(data: bytearray, random_: random.Random) -> None:
    at = random_.randrange(len(data))
    end = min(len(data), at + random_.choice((100, 2000)))
    data[at:end] = random_.randbytes(end - at)


MUTATIONS: dict[str, Callable[[bytearray, random.Random], None]] = {
    "flip": _flip,
    "cut": _cut,
    "delete": _delete,
    "swap": _swap,
    "insert": _insert,
    "blank": _blank,
    "token": _token,
    "value": _value,
    "repeat": _repeat,
    "noise": _noise,
}
"""``mutation(data, random)`` damages ``data`` in place."""


def damaged(data: bytes, seed: int) -> tuple[str, bytes]:
    """One mutation of ``data`` and its name; the seed decides both."""
    random_ = random.Random(seed)
    name = random_.choice(list(MUTATIONS))
    copy = bytearray(data)
    MUTATIONS[name](copy, random_)
    return name, bytes(copy)
