"""Arguments of an engine and its steps as the library takes them."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable, Sequence
from typing import Any, Optional, Union

from .errors import InvalidArgumentError
from .model import ids_array

_KV = {"f16": 0, "f32": 1}


def optional_ids(values: Optional[Sequence[int]], n: int, what: str) -> Any:
    """An optional argument of a step as c_int32 [n]."""
    if values is None:
        return None
    array = ids_array(values)
    if len(array) != n:
        raise InvalidArgumentError(f"{what} has {len(array)} entries for {n} tokens")
    return array


def logits_flags(logits: Union[str, Sequence[bool], None], n: int) -> Any:
    """Which entries ask for logits, as c_uint8 [n]; None: the last."""
    if logits is None or (isinstance(logits, str) and logits == "last"):
        return None
    if isinstance(logits, str):
        if logits != "all":
            raise InvalidArgumentError(f"logits='{logits}'; there are 'last', 'all', and a flag for each token")
        return (c.c_uint8 * n)(*([1] * n))
    if not isinstance(logits, Iterable):
        raise TypeError(f"logits are 'last', 'all' or a flag for each token, not {logits!r}")
    flags = [1 if flag else 0 for flag in logits]
    if len(flags) != n:
        raise InvalidArgumentError(f"logits has {len(flags)} entries for {n} tokens")
    return (c.c_uint8 * n)(*flags)


def kv_types(kv: Union[str, tuple[str, str]]) -> tuple[int, int]:
    pair = (kv, kv) if isinstance(kv, str) else tuple(kv)
    if len(pair) != 2 or any(kind not in _KV for kind in pair):
        raise InvalidArgumentError(f"kv={kv!r}; there are 'f16' and 'f32', or a pair of them for K and V")
    return _KV[pair[0]], _KV[pair[1]]
