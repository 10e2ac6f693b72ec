"""A tile as bytes: a JSON header with the layout, then little-endian arrays that the browser maps without copying.

``MST1``, header length (uint32), header padded with spaces to 8 bytes, then per strip ``uint8[classes * buckets]`` and
per row its long slices (``float64`` start and duration, ``uint32`` name and position, ``uint8`` colour) and short ones
(``float64`` busy share, ``uint32`` bucket, count, name and position of the longest, ``uint8`` its colour). Every array
starts at a multiple of 8 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"MST1"
ALIGN = 8


def encode(head: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """``head`` and ``arrays`` in order; their element sizes and lengths follow from the header."""
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(MAGIC) + 4 + len(text)) % ALIGN)
    parts = [MAGIC, len(text).to_bytes(4, "little"), text]
    for array in arrays:
        raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        parts.append(raw + b"\0" * (-len(raw) % ALIGN))
    return b"".join(parts)
