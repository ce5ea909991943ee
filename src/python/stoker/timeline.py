"""What the queues of a run did and when: computing on one side, the drive on the other."""

from __future__ import annotations

import contextlib
import ctypes as c
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from . import _structs as s
from ._handle import Handle
from ._native import _text, check, lib
from .errors import StateError
from .units import as_int

if TYPE_CHECKING:
    from .engine import Engine

# One interval: stk_work of stoker.h. `kind` is an index into work_kinds(); a layer or an expert of NO_LAYER is none.
WORK = np.dtype(
    [
        ("begin_ns", np.uint64),
        ("end_ns", np.uint64),
        ("step", np.uint64),
        ("bytes", np.uint64),
        ("kind", np.uint32),
        ("layer", np.uint32),
        ("expert", np.uint32),
        ("n_expert", np.uint32),
    ]
)
NO_LAYER = 0xFFFFFFFF


class WorkKind(NamedTuple):
    """What a queue does for a while, such as "experts", and which queue that is, such as "cpu"."""

    name: str
    queue: str


def work_kinds() -> tuple[WorkKind, ...]:
    """The kinds of work, by number."""
    kinds: list[WorkKind] = []
    while name := lib().stk_work_name(len(kinds)):
        kinds.append(WorkKind(_text(name), _text(lib().stk_work_queue(len(kinds)))))
    return tuple(kinds)


class Timeline(Handle):
    """
    Takes down what the queues of an engine or of a replay do: the dense part, batches of experts, packing and waiting on the CPU, and
    each read of the drive.

        with stoker.Timeline() as timeline:
            engine.set_timeline(timeline)                                      # a live run, from its next step on, or
            stoker.replay("run.trace", io="emu:3G,80us", timeline=timeline)    # a replay that predicts times
            stoker.plot.timeline(timeline)

    :param n_max: intervals that there is room for, taken at once, 48 bytes each; what comes later is counted in `n_lost`.
    :param first_step: steps before are left out, counted from when the run is given it.
    :param n_step: at most so many steps are kept; 0: all.
    """

    _what = "timeline"

    def __init__(self, n_max: int = 1 << 18, *, first_step: int = 0, n_step: int = 0) -> None:
        self._engine: Optional[weakref.ref[Engine]] = None  # that it is attached to
        out = c.c_void_p()
        sizes = [as_int(value, what, high=2**64 - 1) for value, what in ((n_max, "n_max"), (first_step, "first_step"), (n_step, "n_step"))]
        check(lib().stk_timeline_open(c.byref(out), *sizes))
        assert out.value is not None
        super().__init__(out.value)

    def _close_native(self, pointer: Any) -> None:
        lib().stk_timeline_close(pointer)

    def _attached(self) -> Optional[Engine]:
        engine = self._engine() if self._engine is not None else None
        return engine if engine is not None and engine._timeline is self else None

    def close(self) -> None:
        """Frees it. Raises StateError while an open engine writes to it: `engine.set_timeline(None)` first."""
        engine = self._attached()
        if engine is not None and not self.closed and not engine.closed:
            raise StateError("this timeline belongs to an open engine: close that first, or engine.set_timeline(None)")
        super().close()

    def _get(self) -> tuple[npt.NDArray[np.void], int]:
        address, n_lost = c.c_void_p(), c.c_uint64()
        engine = self._attached()
        with contextlib.ExitStack() as stack:
            if engine is not None and not engine.closed:
                stack.enter_context(engine._use())  # a step in another thread writes here
            pointer = stack.enter_context(self._use())
            n = check(lib().stk_timeline_get(pointer, c.byref(address), c.byref(n_lost)))
            raw = c.string_at(address.value, n * WORK.itemsize) if n and address.value else b""
        return np.frombuffer(raw, WORK).copy(), n_lost.value

    def work(self) -> npt.NDArray[np.void]:
        """A copy of the intervals so far, [n] of `WORK`, in the order in which they ended; times from the begin of the first step."""
        return self._get()[0]

    @property
    def n_lost(self) -> int:
        """How many intervals had no room."""
        return self._get()[1]

    def __repr__(self) -> str:
        return f"<stoker.Timeline{' closed' if self.closed else ''}>"


assert c.sizeof(s.WorkStruct) == WORK.itemsize
