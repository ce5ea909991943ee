"""What the machine is and can do: its cores, its limits, what slows it down, and the table of costs."""

from __future__ import annotations

import ctypes as c
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Callable, Optional, Union

from . import _structs as s
from ._native import Callbacks, _text, check, lib
from .model import Model, PathLike, encode_path, from_struct
from .units import as_int, as_text, parse_bytes

_LEVELS = {0: "ok", 1: "note", 2: "problem"}


@dataclass(frozen=True)
class MachineInfo:
    """
    The CPU and what of it this process may use: CPUs of the affinity mask, physical cores among them, the threads that an engine
    takes by default, bytes of memory that it may still take, the best kernels.
    """

    name: str
    n_cpu: int
    n_core: int
    n_threads: int
    available_bytes: int
    cpu: str


@dataclass(frozen=True)
class Limits:
    """
    What the machine can do with all threads: reading memory, operations with 8-bit codes and with float32, the time of a job that
    does nothing and of one meeting of all threads; and the buffer that was read, with how much of it was asked for as huge pages.
    """

    n_threads: int
    read_bytes_per_s: float
    int8_ops_per_s: float
    float_ops_per_s: float
    run_ns: float
    phase_ns: float
    buffer_bytes: int
    huge_bytes: int
    cpu: str


@dataclass(frozen=True)
class Finding:
    """One thing that `doctor` looked at. `level` is "ok", "note" or "problem"; `advice` is "" where nothing is to be done."""

    level: str
    topic: str
    found: str
    advice: str


def machine() -> MachineInfo:
    """The CPU and what of it this process may use."""
    info = s.MachineInfoStruct()
    check(lib().stk_get_machine(c.byref(info)))
    return from_struct(MachineInfo, info)


def measure_limits(threads: int = 0, cpu: Optional[str] = None) -> Limits:
    """
    Measures what the machine can do, in about two seconds and with up to half of the free memory.

    :param threads: 0: the physical cores that this process may use.
    :param cpu: the most that kernels may use: "ref", "avx2", "avxvnni", "avx512".
    """
    limits = s.LimitsStruct()
    check(lib().stk_measure_limits(c.byref(limits), as_int(threads, "threads"), as_text(cpu, "cpu") if cpu is not None else None))
    return from_struct(Limits, limits)


def doctor(path: Optional[PathLike] = None) -> list[Finding]:
    """
    Looks at what speed depends on: kernels, cores, memory, huge pages, locking, io_uring.

    :param path: a model, or any file on its drive, to look at direct reads and read-ahead there.
    """
    found: list[Finding] = []

    def call(_user: object, level: int, *texts: bytes) -> None:
        topic, what, advice = map(_text, texts)
        found.append(Finding(_LEVELS.get(level, "problem"), topic, what, advice))

    check(lib().stk_doctor(encode_path(path) if path is not None else None, s.FindingFn(call), None))
    return found


def calibrate(
    path: PathLike,
    model: Union[Model, PathLike, None] = None,
    *,
    threads: int = 0,
    ram: Union[int, str, None] = None,
    cpu: Optional[str] = None,
    io: Optional[str] = None,
    progress: Optional[Callable[[str, int, int], object]] = None,
) -> None:
    """
    Measures what things take on this machine and writes it to `path`, whole or not at all, for `Engine(cost=)` and `replay(cost=)`.
    Takes half a minute to minutes.

    :param model: measure its experts, its dense part and the drive that it lies on, too; without one the drive is that of `path`,
        through a file of 250 MB that is gone afterwards.
    :param threads, ram, cpu, io: as for `Engine`.
    :param progress: called with (what, parts done, parts in all); returning False cancels.
    """
    o, callbacks = s.CalibrateOptionsStruct(), Callbacks()
    lib().stk_calibrate_options_default(c.byref(o), c.sizeof(o))
    o.n_threads = as_int(threads, "threads")
    o.ram_bytes = parse_bytes(ram)
    if cpu is not None:
        o.cpu = as_text(cpu, "cpu")
    if io is not None:
        o.io = as_text(io, "io")
    o.progress = callbacks.progress(progress)
    target = encode_path(path)
    with ExitStack() as stack:
        pointer = None
        if model is not None:
            opened = model if isinstance(model, Model) else stack.enter_context(Model(model))
            pointer = stack.enter_context(opened._use())
        check(lib().stk_calibrate(pointer, c.byref(o), target), callbacks)


def check_cost(path: PathLike) -> None:
    """
    Raises unless a file is one that `calibrate` has written.

    :raises ReadWriteError, FormatError: it cannot be read, or is something else.
    """
    check(lib().stk_cost_check(encode_path(path)))
