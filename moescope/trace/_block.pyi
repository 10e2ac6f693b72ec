from collections.abc import Sequence

def columns(
    data: bytes | bytearray,
) -> (
    tuple[int, int, bool, bytes, Sequence[bytes | None], bytes, bytes, Sequence[tuple[bytes, bytes]], Sequence[bytes]]
    | None
): ...
