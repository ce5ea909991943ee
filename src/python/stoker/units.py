"""Sizes as people write them."""

from __future__ import annotations

import re
from typing import Union

from .errors import InvalidArgumentError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(size: Union[int, str, None]) -> int:
    """A number of bytes, or text like "8G", "512M", "1.5G" (units of 1,024); None is 0."""
    if size is None:
        return 0
    if isinstance(size, int) and not isinstance(size, bool):
        if not 0 <= size < 2**64:
            raise InvalidArgumentError(f"{size} bytes")
        return size
    if not isinstance(size, str):
        raise TypeError(f"a size is an int or text like '8G', not {size!r}")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", size.strip(), re.IGNORECASE)
    if not match:
        raise InvalidArgumentError(f"a size of '{size}'; give bytes, or a number with K, M, G or T")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def as_int(value: object, what: str, low: int = 0, high: int = 2**32 - 1) -> int:
    """`value` as an int that C can take, which would otherwise cut it off silently."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an integer, not {value!r}")
    number = int(value.__index__())
    if not low <= number <= high:
        raise InvalidArgumentError(f"{what} is {number}; {low} to {high} are possible")
    return number


def as_text(value: object, what: str) -> bytes:
    """A name or a specification as C takes it."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {value!r}")
    if "\0" in value:
        raise InvalidArgumentError(f"{what} has a zero byte: {value!r}")
    return value.encode()


def as_call(value: object, what: str) -> None:
    """Refuses what is neither None nor a function, before it is called where nobody expects an error."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} is a function, not {value!r}")
