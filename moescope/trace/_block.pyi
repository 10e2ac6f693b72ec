from collections.abc import Sequence

Words = tuple[bytes, list[str | bytes | None]]

def columns(
    data: bytes | bytearray,
) -> tuple[int, int, bool, bytes, Sequence[bytes | None], bytes, bytes, Sequence[Words], Sequence[bytes]] | None: ...
