from collections.abc import Sequence
from typing import Any

Words = tuple[bytes, list[Any], int, bool]

def columns(
    data: bytes | bytearray | memoryview,
) -> tuple[int, int, bool, bytes, Sequence[bytes | None], bytes, bytes, Sequence[Words], Sequence[bytes]] | None: ...
