"""What is built in: eviction policies and predictors, with their parameters."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass

from . import _structs as s
from ._native import _text, check, lib

_POLICY, _PREDICTOR = 0, 1


@dataclass(frozen=True)
class Param:
    """A number that a method takes, from `least` to `most`, `initial` where none is given."""

    name: str
    what: str
    least: float
    most: float
    initial: float


@dataclass(frozen=True)
class Method:
    """A policy or predictor, to be named "NAME" or "NAME:PARAMETER=VALUE,...". With replay_only it knows the future."""

    name: str
    idea: str
    params: tuple[Param, ...]
    replay_only: bool


def _params(kind: int, i: int) -> tuple[Param, ...]:
    found: list[Param] = []
    p = s.ParamInfoStruct()
    while check(lib().stk_get_method_param(kind, i, len(found), c.byref(p))):
        found.append(Param(_text(p.name), _text(p.what), p.least, p.most, p.initial))
    return tuple(found)


def _methods(kind: int) -> list[Method]:
    found: list[Method] = []
    m = s.MethodInfoStruct()
    while check(lib().stk_get_method(kind, len(found), c.byref(m))):
        found.append(Method(_text(m.name), _text(m.idea), _params(kind, len(found)), bool(m.replay_only)))
    return found


def list_policies() -> list[Method]:
    """The built-in eviction policies."""
    return _methods(_POLICY)


def list_predictors() -> list[Method]:
    """The built-in predictors."""
    return _methods(_PREDICTOR)
