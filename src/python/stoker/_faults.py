"""What hooks in Python raise: exceptions cannot pass through C, so they are kept here and raised when the call has returned."""

from __future__ import annotations

from typing import Optional

from .errors import HookError

FAILED = -10  # what a hook returns for an exception; its text stays here


class Faults:
    """
    The base of the callbacks of a policy or predictor. A hook that raises keeps the exception and returns an error, on which the
    library goes on without it; `raise_faults` brings the exception back afterwards.
    """

    _error: type[HookError] = HookError
    _instead = ""  # what the library does where a hook fails
    name = ""

    def __init__(self) -> None:
        self._raised: list[BaseException] = []
        self._n_fault = 0
        self._first_fault = ""

    def _failed(self, error: BaseException) -> int:
        self._raised.append(error)
        return FAILED

    def _fault(self, _number: int, _code: int, detail: bytes) -> None:
        self._n_fault += 1
        self._first_fault = self._first_fault or detail.decode("utf-8", "replace")

    def _failed_close(self, error: BaseException) -> None:
        self._raised.append(error)
        self._n_fault += 1
        self._first_fault = self._first_fault or "its close failed"

    def raise_failed_open(self) -> None:
        """Opening failed: if because of the object's own open, raises what that raised."""
        if self._raised:
            raised, self._raised = self._raised, []
            raise raised[0]

    def take_fault(self) -> Optional[HookError]:
        """What there is to raise since the last call; KeyboardInterrupt and its like are raised as they are."""
        if not self._n_fault and not self._raised:
            return None
        raised, n_fault, text = self._raised, max(self._n_fault, 1), self._first_fault
        self._raised, self._n_fault, self._first_fault = [], 0, ""
        for error in raised:
            if not isinstance(error, Exception):
                raise error
        why = f"{type(raised[0]).__name__}: {raised[0]}" if raised else ""
        many = f" ({n_fault} events)" if n_fault > 1 else ""
        said = ": ".join(part for part in (text or "it failed", why) if part)
        fault = self._error(f"{self.name}: {said}; {self._instead}{many}", n_fault=n_fault)
        fault.__cause__ = raised[0] if raised else None
        return fault

    def raise_faults(self) -> None:
        """Raises what there is to raise."""
        fault = self.take_fault()
        if fault is not None:
            raise fault


def take_first(*hooks: Optional[Faults]) -> Optional[HookError]:
    """The fault of the first that has one; another one's is its context, so that a traceback shows both."""
    faults = [fault for one in hooks if one is not None and (fault := one.take_fault()) is not None]
    for fault, other in zip(faults, faults[1:]):
        (fault.__cause__ or fault).__context__ = other
    return faults[0] if faults else None
