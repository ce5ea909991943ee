"""Synthetic models: random weights in the sizes and formats of real ones."""

from __future__ import annotations

import ctypes as c
from typing import Callable, Optional

from . import _structs as s
from ._native import Callbacks, check, lib
from .model import PathLike, encode_path
from .units import as_int, as_text


def synth(
    path: PathLike,
    shape: str,
    type: str,
    *,
    n_layer: int = 0,
    n_vocab: int = 0,
    seed: int = 0,
    route_from: Optional[PathLike] = None,
    progress: Optional[Callable[[str, int, int], object]] = None,
) -> None:
    """
    Writes a GGUF model of random weights in the sizes and formats of a real one, for measuring speed. It appears at `path` whole or
    not at all; a file of that name is replaced. The same seed and options give the same bytes.

    :param shape: such as "qwen3-30b-a3b", "mixtral-8x7b" or "tiny", each also with "-quarter" at the end; a wrong one is answered
        with the list.
    :param type: "Q4_K_M", "Q5_K_M", "Q8_0", "Q4_0", "BF16", "F16", "F32".
    :param n_layer: 0: the shape's, or the trace's.
    :param n_vocab: 0: the shape's; at least 257.
    :param route_from: a trace whose routing the model follows: token t is routed as the trace's token t was, and followed by t + 1.
    :param progress: called with (what, bytes done, bytes in all); returning False cancels.
    :raises NoSpaceError: names what is needed and what is free.
    """
    o, callbacks = s.SynthOptionsStruct(), Callbacks()
    lib().stk_synth_options_default(c.byref(o), c.sizeof(o))
    o.n_layer = as_int(n_layer, "n_layer")
    o.n_vocab = as_int(n_vocab, "n_vocab")
    o.seed = as_int(seed, "seed", high=2**64 - 1)
    o.shape, o.type = as_text(shape, "shape"), as_text(type, "type")
    if route_from is not None:
        o.route_from = encode_path(route_from)
    o.progress = callbacks.progress(progress)
    check(lib().stk_synth(encode_path(path), c.byref(o)), callbacks)
