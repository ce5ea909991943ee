"""The end of an engine, which arrays that show its memory may put off."""

from __future__ import annotations

import ctypes as c
import os
import weakref
from typing import Any

from ._faults import Faults, take_first
from ._native import check, lib
from .model import Model


def raise_faults(hooks: list[Faults]) -> None:
    fault = take_first(*hooks)
    if fault is not None:
        raise fault


class OpenEngine:
    """What is left of an engine that was closed: freed at once, or when no array shows its memory any more."""

    def __init__(self, pointer: int, model: Model, owns_model: bool, hooks: list[Faults]) -> None:
        self._pointer, self._model, self._owns_model, self._hooks = pointer, model, owns_model, hooks
        self._n_view, self._pid = 0, os.getpid()

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        try:
            check(lib().stk_engine_close(c.byref(c.c_void_p(self._pointer))))
        finally:
            self._model._n_engine -= 1
            if self._owns_model:
                self._model.close()
        raise_faults(self._hooks)

    def close_after(self, views: list[Any]) -> None:
        self._n_view = len(views)
        for view in views:
            weakref.finalize(view, self._leave)

    def _leave(self) -> None:
        self._n_view -= 1
        if self._n_view == 0:
            self.close()
