"""Where the time of steps went, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import _structs as s
from ._native import _text, lib

# One stretch of a step: stk_span of stoker.h. `layer` is n_layer outside of layers, `stage` an index into stage_names().
SPAN = np.dtype([("begin_ns", np.uint64), ("ns", np.uint32), ("layer", np.uint16), ("stage", np.uint16)])


def stage_names() -> tuple[str, ...]:
    """The stages of a step, by number: "embed", "norm", "qkv", ..."""
    names: list[str] = []
    while name := lib().stk_stage_name(len(names)):
        names.append(_text(name))
    return tuple(names)


@dataclass(frozen=True)
class Profile:
    """
    Sums since `Engine.set_profile(True)`, and the last step stretch by stretch; times in ns, as one of the threads goes through them.

    `stage_ns` is [n_layer + 1, n_stage], its last row what is outside of layers. `spans` is an array of `SPAN` in order of time,
    counted from the step's begin; its end is cut off where a step has very many. `bytes` are weights and KV that products and
    attention went over; the ops are multiplications and additions with quantized and with float weights.
    """

    stages: tuple[str, ...]
    n_step: int
    n_token: int
    bytes: int
    int8_ops: int
    float_ops: int
    stage_ns: npt.NDArray[np.uint64]
    spans: npt.NDArray[np.void]

    @property
    def by_stage(self) -> dict[str, int]:
        """The time of each stage over all layers, in ns."""
        return dict(zip(self.stages, self.stage_ns.sum(axis=0).tolist()))

    @classmethod
    def _of(cls, profile: s.ProfileStruct) -> Profile:
        """A copy of what belongs to the engine."""
        stages = stage_names()
        shape = (profile.n_layer + 1, len(stages))
        stage_ns = np.ctypeslib.as_array(profile.stage_ns, shape).copy() if profile.stage_ns else np.zeros(shape, np.uint64)
        spans = np.zeros(0, SPAN)
        if profile.n_span:
            spans = np.ctypeslib.as_array(profile.span, (profile.n_span,)).astype(SPAN)
        return cls(
            stages=stages,
            n_step=profile.n_step,
            n_token=profile.n_token,
            bytes=profile.bytes,
            int8_ops=profile.int8_ops,
            float_ops=profile.float_ops,
            stage_ns=stage_ns,
            spans=spans,
        )
