"""Choosing a token from logits."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from . import _structs as s
from ._handle import Handle
from ._native import check, lib
from .errors import InvalidArgumentError
from .model import Model
from .units import as_int


@dataclass(frozen=True)
class Sampling:
    """
    How tokens are drawn; in this order: penalty, top-k, top-p, min-p, temperature. The same seed and logits give the same tokens.

    :param temperature: 0: always the most likely token.
    :param top_k: keep that many; 0: off.
    :param top_p: keep the most likely ones that have this probability together; 1: off.
    :param min_p: keep those of at least this part of the highest probability; 0: off.
    :param repeat_penalty: divides the logits of tokens among the last `repeat_last_n`; 1: off.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0


GREEDY = Sampling(temperature=0)


class Sampler(Handle):
    """A sampler with its own random state, of a model or a number of tokens."""

    _what = "sampler"

    def __init__(self, model: Union[Model, int], sampling: Sampling = Sampling()) -> None:
        self.n_vocab = model.info.n_vocab if isinstance(model, Model) else as_int(model, "n_vocab", 1)
        o = s.SamplerOptionsStruct()
        lib().stk_sampler_options_default(c.byref(o), c.sizeof(o))
        o.temperature, o.top_p, o.min_p = sampling.temperature, sampling.top_p, sampling.min_p
        o.repeat_penalty = sampling.repeat_penalty
        o.top_k = as_int(sampling.top_k, "top_k", -(2**31), 2**31 - 1)
        o.repeat_last_n = as_int(sampling.repeat_last_n, "repeat_last_n", -(2**31), 2**31 - 1)
        o.seed = as_int(sampling.seed, "seed", high=2**64 - 1)
        out = c.c_void_p()
        check(lib().stk_sampler_open(c.byref(out), c.byref(o), self.n_vocab))
        assert out.value is not None
        super().__init__(out.value)

    def _close_native(self, pointer: Any) -> None:
        lib().stk_sampler_close(pointer)

    def accept(self, token: int) -> None:
        """Tells of a token that stands in the text, for the penalty."""
        with self._use() as p:
            check(lib().stk_sampler_accept(p, as_int(token, "token", -(2**31), 2**31 - 1)))

    def sample(self, logits: Any) -> int:
        """
        Chooses a token from logits, [n_vocab] float32.

        :raises InvalidArgumentError: another shape, or every logit is NaN.
        """
        array = np.ascontiguousarray(logits, dtype=np.float32)
        if array.shape != (self.n_vocab,):
            raise InvalidArgumentError(f"logits of shape {array.shape}; the vocabulary has {self.n_vocab} tokens")
        return self._sample_at(array.ctypes.data)

    def _sample_at(self, address: int) -> int:
        with self._use() as p:
            return check(lib().stk_sampler_sample(p, address))
