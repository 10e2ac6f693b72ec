"""Messages between a crew and its processes: pickles with their length before them."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

_LENGTH = struct.Struct("<Q")


def packed(value: object) -> bytes:
    """A message's payload."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def send(stream: IO[bytes], payload: bytes) -> None:
    """Write one message."""
    stream.write(_LENGTH.pack(len(payload)))
    stream.write(payload)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one message. Raises :class:`EOFError` where the other side is gone."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    payload = stream.read(length)
    if len(payload) < length:
        raise EOFError
    return pickle.loads(payload)
