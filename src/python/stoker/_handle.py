"""What all objects of the C library share: one close, and clear errors instead of a crash for every wrong moment to use them."""

from __future__ import annotations

import ctypes as c
import os
import threading
import warnings
from types import TracebackType
from typing import Any, Optional, TypeVar

from .errors import StateError

_H = TypeVar("_H", bound="Handle")


class Handle:
    """
    Owns a pointer of the library. `with handle._use() as pointer` guards each call: it refuses a closed object, a process that
    was forked from the one that opened it, and a second thread (or a callback) while a call is running.
    """

    _what = "object"
    _shared = False  # whether several threads may use it at once

    def __init__(self, pointer: int) -> None:
        self._pointer: Optional[int] = pointer
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._n_use = 0
        self._guard = _Guard(self)

    def _close_native(self, pointer: Any) -> None:
        """Calls stk_..._close(&pointer)."""
        raise NotImplementedError

    def _use(self) -> _Guard:
        return self._guard

    def _enter(self) -> int:
        if self._pid != os.getpid():
            raise StateError(f"this {self._what} was opened by process {self._pid}, which forked this one; open it again here")
        with self._lock:
            if self._pointer is None:
                raise StateError(f"this {self._what} is closed")
            if self._n_use and not self._shared:
                raise StateError(f"this {self._what} is in use: by another thread, or by the call that runs this callback")
            self._n_use += 1
            return self._pointer

    def _leave(self) -> None:
        with self._lock:
            self._n_use -= 1

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pointer is None

    def close(self) -> None:
        """Frees everything. May be called again. Raises StateError while a call is running."""
        if self._pid != os.getpid():  # its threads did not come along: nothing here can be ended, and nothing needs to be
            self._pointer = None
            return
        with self._lock:
            if self._n_use:
                raise StateError(f"this {self._what} is in use: it cannot be closed now")
            pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._close_native(c.byref(c.c_void_p(pointer)))

    def __enter__(self: _H) -> _H:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is None or self._pid != os.getpid():
            return
        warnings.warn(f"unclosed {self._what}: {self!r}", ResourceWarning, source=self, stacklevel=2)
        self.close()

    def __getstate__(self) -> Any:
        raise TypeError(f"a {self._what} cannot be pickled: open it where it is used")


class _Guard:
    """The context manager of _use: one object for all uses, since calls are many."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        return self._handle._enter()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._handle._leave()
