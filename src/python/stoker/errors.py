"""One exception class for each family of errors of the C library, with its text: what failed, where, and what to do."""

from __future__ import annotations

from typing import Any, Optional


class StokerError(Exception):
    """Base of all. `code` is the library's STK_E... number, or None where Python itself found the error."""

    code: Optional[int] = None

    def __init__(self, detail: str, code: Optional[int] = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.detail

    def __reduce__(self) -> Any:
        return type(self), (self.detail, self.code)


class InvalidArgumentError(StokerError, ValueError):
    """An argument or option has no meaning here."""

    code = -1


class OutOfMemoryError(StokerError, MemoryError):
    """The system refused memory."""

    code = -2


class ReadWriteError(StokerError, OSError):
    """Reading or writing failed."""

    code = -3


class FormatError(StokerError, ValueError):
    """A file is malformed or cut off."""

    code = -4


class UnsupportedError(StokerError, NotImplementedError):
    """A valid file or request that this build cannot serve."""

    code = -5


class BudgetError(StokerError, MemoryError):
    """A memory budget is too small; the text names the least."""

    code = -6


class ContextFullError(StokerError):
    """No room for more positions."""

    code = -7


class CanceledError(StokerError):
    """`Engine.cancel` was called."""

    code = -8


class NoSpaceError(StokerError, OSError):
    """A disk is full."""

    code = -9


class StateError(StokerError, RuntimeError):
    """The object is not in a state that allows the call: closed, in use by another thread, or left behind by a fork."""

    code = -10


class DeviceLostError(StokerError, RuntimeError):
    """The device is lost; only another engine, without it, can go on."""

    code = -11


class LibraryError(StokerError, ImportError):
    """The C library was not found, is none, or is of another version than this package."""

    def __init__(self, detail: str, code: Optional[int] = None) -> None:
        super().__init__(detail, code)


class HookError(StokerError):
    """
    A policy or predictor in Python raised, or gave an answer that cannot be; the step or replay was finished without it. `__cause__` is
    the first exception, if there was one; `n_fault` says how many events it failed at; `result` is the `ReplayResult` where a replay
    raised this.
    """

    def __init__(self, detail: str, code: Optional[int] = None, n_fault: int = 1, result: Any = None) -> None:
        super().__init__(detail, code)
        self.n_fault = n_fault
        self.result = result

    def __reduce__(self) -> Any:
        return type(self), (self.detail, self.code, self.n_fault, self.result)


class PolicyError(HookError):
    """A policy in Python failed; LRU decided for that event."""


class PredictorError(HookError):
    """A predictor in Python failed; nothing was predicted for that event."""


_FAMILIES = (
    InvalidArgumentError,
    OutOfMemoryError,
    ReadWriteError,
    FormatError,
    UnsupportedError,
    BudgetError,
    ContextFullError,
    CanceledError,
    NoSpaceError,
    StateError,
    DeviceLostError,
)
BY_CODE: dict[int, type[StokerError]] = {family.code: family for family in _FAMILIES if family.code is not None}


def error_of(code: int, detail: str) -> StokerError:
    """The exception for a negative code of the library."""
    return BY_CODE.get(code, StokerError)(detail, code)
