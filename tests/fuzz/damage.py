"""A strategy that damages the content of a file: bytes anywhere, a value of its JSON, or a piece of its text."""

import json
import struct
from typing import Any

from hypothesis import strategies as st

HEADER = 8  # bytes before a safetensors header, with its length
DEEP = json.loads("[" * 400 + "]" * 400)
NUMBERS = [True, -1, 0, 3, 2**31, 2**63, 10**30, 1e308, float("nan"), float("-inf")]
STRINGS = ["", "\0", "\ud800", "a" * 5000, "../../etc/passwd", "/dev/zero", "1e999", "2262-13-40"]
VALUES = st.sampled_from([None, *NUMBERS, *STRINGS, [], {}, [[]], {"a": {}}, ["x"] * 100, DEEP]) | st.recursive(
    st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)
PIECES = [piece.encode() for piece in ["", "\0", "\n", "\r", '"', "\\", ",", "../", "%s", "-1", "nan", "1e999", "not "]]
PIECES += [b"[" * 50_000, b"{" * 200, b"(" * 200, b"<a>" * 200, b"*" * 50, b"9" * 400]
PIECES += [b"\xff\xfe", b"\xf0\x28", "\u202e\u0130\uffff".encode()]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, each in inner for place in _places(each, (*path, key))]


def _with_other_value(draw: Any, value: Any) -> Any:
    """Return JSON in which one value is another one, missing, or under an unknown name."""
    places = _places(value)
    place = places[draw(st.integers(0, len(places) - 1))]
    if not place:
        return draw(VALUES)
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    how = draw(st.integers(0, 5))
    if how == 0:
        del holder[place[-1]]
    elif how == 1 and isinstance(holder, dict):
        holder["unknown"] = holder.pop(place[-1])
    else:
        holder[place[-1]] = draw(VALUES)
    return value


def _json(draw: Any, content: bytes) -> bytes | None:
    """Return JSON, or safetensors with a header, in which one value is another; None if the content is neither."""
    head = b""
    text, rest = content, b""
    if len(content) > HEADER and content[HEADER : HEADER + 1] == b"{":
        (size,) = struct.unpack("<Q", content[:HEADER])
        text, rest, head = content[HEADER : HEADER + size], content[HEADER + size :], b"safetensors"
    try:
        changed = json.dumps(_with_other_value(draw, json.loads(text))).encode()
    except (ValueError, RecursionError):
        return None
    return struct.pack("<Q", len(changed)) + changed + rest if head else changed


def _edited(draw: Any, content: bytes) -> bytes:
    """Return the bytes after one edit: a cut, a flipped bit, a copy or removal of a part, or another piece."""
    begin = draw(st.integers(0, len(content)))
    how = draw(st.integers(0, 4))
    if how == 0:
        return content[:begin]
    if how == 1 and begin < len(content):
        return content[:begin] + bytes([content[begin] ^ (1 << draw(st.integers(0, 7)))]) + content[begin + 1 :]
    end = begin + draw(st.integers(0, 64))
    if how == 2:
        return content[:begin] + content[begin:end] * draw(st.sampled_from([0, 2, 50])) + content[end:]
    piece = draw(st.sampled_from(PIECES) | st.binary(max_size=8))
    return content[:begin] + piece + content[begin if how == 3 else end :]


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """Return ``content`` after one or two edits."""
    for _ in range(draw(st.integers(1, 2))):
        changed = _json(draw, content) if draw(st.booleans()) else None
        content = _edited(draw, content) if changed is None else changed
    return content
