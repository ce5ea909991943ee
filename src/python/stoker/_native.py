"""
The C library: where it is looked for, what it has to be, and the signature of every function of stoker.h.

It is loaded at the first use of anything that needs it, from the first of these places that has it:

1. the file that the environment variable STOKER_LIBRARY names;
2. `lib/` inside this package (a wheel brings the library along);
3. `build/` of the source tree that this package lies in;
4. where the system looks for libraries.
"""

from __future__ import annotations

import ctypes as c
import os
import threading
from pathlib import Path
from typing import Any, Callable, Optional

from . import _structs as s
from .errors import LibraryError, error_of
from .units import as_call

ABI_VERSION = 2
ENVIRONMENT = "STOKER_LIBRARY"
_PACKAGE = Path(__file__).resolve().parent

_P = c.c_void_p  # every opaque object
_PP = c.POINTER(c.c_void_p)
_str = c.c_char_p
_int = c.c_int
_u32, _i32, _u64, _i64, _size = c.c_uint32, c.c_int32, c.c_uint64, c.c_int64, c.c_size_t
_ptr = c.POINTER

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "stk_abi_version": (_u32, []),
    "stk_version": (_str, []),
    "stk_strerror": (_str, [_int]),
    "stk_error_detail": (_str, []),
    "stk_log_set": (None, [s.LogFn, _P]),
    "stk_model_open": (_int, [_PP, _str]),
    "stk_model_close": (None, [_PP]),
    "stk_model_get_info": (_int, [_P, _ptr(s.ModelInfoStruct)]),
    "stk_model_n_meta": (_u64, [_P]),
    "stk_model_get_meta": (_int, [_P, _u64, _ptr(_str), _ptr(_str), _ptr(_str)]),
    "stk_model_n_tensor": (_u64, [_P]),
    "stk_model_get_tensor": (_int, [_P, _u64, _ptr(s.TensorInfoStruct)]),
    "stk_model_n_expert_class": (_u64, [_P]),
    "stk_model_get_expert_class": (_int, [_P, _u64, _ptr(s.ExpertClassInfoStruct)]),
    "stk_model_owns_file": (_int, [_P, _str]),
    "stk_tokenize": (_i64, [_P, _str, _size, _u32, _P, _size]),
    "stk_token_bytes": (_i64, [_P, _i32, _int, _PP]),
    "stk_token_is_end": (_int, [_P, _i32]),
    "stk_decoder_open": (_int, [_PP, _P, _int]),
    "stk_decoder_close": (None, [_PP]),
    "stk_decoder_put": (_i64, [_P, _i32, _PP]),
    "stk_decoder_flush": (_i64, [_P, _PP]),
    "stk_chat_format": (_i64, [_P, _ptr(s.ChatMessageStruct), _size, _P, _size]),
    "stk_get_method": (_int, [_u32, _u32, _ptr(s.MethodInfoStruct)]),
    "stk_get_method_param": (_int, [_u32, _u32, _u32, _ptr(s.ParamInfoStruct)]),
    "stk_engine_options_default": (None, [_ptr(s.EngineOptionsStruct), _size]),
    "stk_engine_open": (_int, [_PP, _P, _ptr(s.EngineOptionsStruct)]),
    "stk_engine_close": (_int, [_PP]),
    "stk_engine_get_memory": (_int, [_P, _ptr(s.MemoryInfoStruct)]),
    "stk_engine_resize": (_int, [_P, _u64]),
    "stk_engine_save_residency": (_int, [_P, _str]),
    "stk_step": (_int, [_P, _ptr(s.BatchStruct)]),
    "stk_get_logits": (_P, [_P, _u32]),
    "stk_get_hidden": (_P, [_P, _u32]),
    "stk_get_routing": (_i64, [_P, _u32, _PP, _PP]),
    "stk_seq_length": (_i64, [_P, _i32]),
    "stk_seq_trim": (_int, [_P, _i32, _i32]),
    "stk_cancel": (None, [_P]),
    "stk_force_route": (_int, [_P, _i32, _P, _u32]),
    "stk_force_placement": (_int, [_P, _u32]),
    "stk_get_residency": (_i64, [_P, _u32, _P, _size]),
    "stk_engine_drop_experts": (_int, [_P]),
    "stk_engine_get_stats": (_int, [_P, _ptr(s.Stats)]),
    "stk_engine_reset_stats": (_int, [_P]),
    "stk_engine_get_predicted": (_int, [_P, _u32, _ptr(s.PredictCount)]),
    "stk_stage_name": (_str, [_u32]),
    "stk_engine_set_profile": (_int, [_P, _int]),
    "stk_engine_get_profile": (_int, [_P, _ptr(s.ProfileStruct)]),
    "stk_work_name": (_str, [_u32]),
    "stk_work_queue": (_str, [_u32]),
    "stk_timeline_open": (_int, [_PP, _u64, _u64, _u64]),
    "stk_timeline_close": (None, [_PP]),
    "stk_timeline_get": (_i64, [_P, _PP, _ptr(_u64)]),
    "stk_engine_set_timeline": (_int, [_P, _P]),
    "stk_measure_limits": (_int, [_ptr(s.LimitsStruct), _u32, _str]),
    "stk_engine_measure_layer": (_int, [_P, _ptr(c.c_double)]),
    "stk_engine_measure_drive": (_int, [_P, _ptr(c.c_double)]),
    "stk_get_machine": (_int, [_ptr(s.MachineInfoStruct)]),
    "stk_doctor": (_int, [_str, s.FindingFn, _P]),
    "stk_calibrate_options_default": (None, [_ptr(s.CalibrateOptionsStruct), _size]),
    "stk_calibrate": (_int, [_P, _ptr(s.CalibrateOptionsStruct), _str]),
    "stk_cost_check": (_int, [_str]),
    "stk_machine_list": (_str, [_u32]),
    "stk_sampler_options_default": (None, [_ptr(s.SamplerOptionsStruct), _size]),
    "stk_sampler_open": (_int, [_PP, _ptr(s.SamplerOptionsStruct), _u32]),
    "stk_sampler_close": (None, [_PP]),
    "stk_sampler_accept": (_int, [_P, _i32]),
    "stk_sampler_sample": (_i32, [_P, _P]),
    "stk_trace_open": (_int, [_PP, _str]),
    "stk_trace_close": (None, [_PP]),
    "stk_trace_get_info": (_int, [_P, _ptr(s.TraceInfoStruct)]),
    "stk_trace_next": (_int, [_P, _ptr(s.TraceEventStruct)]),
    "stk_trace_is_cut": (_int, [_P]),
    "stk_trace_convert_options_default": (None, [_ptr(s.TraceConvertOptionsStruct), _size]),
    "stk_trace_convert": (_int, [_ptr(_str), _u32, _str, _ptr(s.TraceConvertOptionsStruct)]),
    "stk_mode_list": (_str, [_u32, _ptr(_str)]),
    "stk_replay_options_default": (None, [_ptr(s.ReplayOptionsStruct), _size]),
    "stk_replay_many": (_int, [_ptr(_str), _u32, _ptr(s.ReplayOptionsStruct), _ptr(s.ReplayResultStruct)]),
    "stk_replay": (_int, [_str, _ptr(s.ReplayOptionsStruct), _ptr(s.ReplayResultStruct)]),
    "stk_tune_options_default": (None, [_ptr(s.TuneOptionsStruct), _size]),
    "stk_tune": (_int, [_ptr(_str), _u32, _ptr(s.TuneOptionsStruct), _ptr(s.TuneResultStruct)]),
    "stk_plan_options_default": (None, [_ptr(s.PlanOptionsStruct), _size]),
    "stk_plan": (_int, [_P, _ptr(s.PlanOptionsStruct), _ptr(s.PlanInfoStruct)]),
    "stk_pack_options_default": (None, [_ptr(s.PackOptionsStruct), _size]),
    "stk_pack": (_int, [_P, _str, _ptr(s.PackOptionsStruct)]),
    "stk_pack_check": (_int, [_P, _ptr(s.PackOptionsStruct)]),
    "stk_synth_options_default": (None, [_ptr(s.SynthOptionsStruct), _size]),
    "stk_synth": (_int, [_str, _ptr(s.SynthOptionsStruct)]),
}


def _candidates() -> list[str]:
    named = os.environ.get(ENVIRONMENT)
    if named:
        if not Path(named).is_file():
            raise LibraryError(f"{ENVIRONMENT} names {named}, which is no file")
        return [named]
    found = []
    for place in (_PACKAGE / "lib", _PACKAGE.parents[2] / "build"):
        if (place / "libstoker.so").is_file() and (place.name == "lib" or (place.parent / "src" / "stoker.h").is_file()):
            found.append(str(place / "libstoker.so"))
    return [*found, "libstoker.so.0", "libstoker.so"]


def _bind(library: c.CDLL, path: str) -> c.CDLL:
    """Sets every signature. A function that is not there tells an older library."""
    try:
        version_of = library.stk_abi_version
    except AttributeError:
        raise LibraryError(f"{path} is no Stoker library: it has no stk_abi_version") from None
    version_of.restype = c.c_uint32
    abi = version_of()
    if abi != ABI_VERSION:
        raise LibraryError(
            f"{path} has version {abi} of Stoker's binary interface, this package needs {ABI_VERSION}: "
            "install the package and the library of one version"
        )
    for name, (result, arguments) in SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            library.stk_version.restype = c.c_char_p
            raise LibraryError(
                f"{path} is version {library.stk_version().decode()} of Stoker and has no {name}: it is older than this package"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library


def _load() -> tuple[c.CDLL, str]:
    tried = []
    for path in _candidates():
        try:
            library = c.CDLL(path)
        except OSError as error:
            tried.append(f"{path} ({error})")
            continue
        return _bind(library, path), path
    raise LibraryError(
        "the Stoker library was not found; build it (./run demo), install it (./run install), or let the environment variable "
        f"{ENVIRONMENT} name the file libstoker.so. Tried: {'; '.join(tried)}"
    )


_lock = threading.Lock()
_library: Optional[c.CDLL] = None
_path = ""


def lib() -> Any:
    """The library, loaded at the first call. Raises LibraryError."""
    global _library, _path
    if _library is None:
        with _lock:
            if _library is None:
                _library, _path = _load()
    return _library


def library_path() -> str:
    """The file that the library was loaded from."""
    lib()
    return _path


def version() -> str:
    """The version of the C library, "major.minor.patch"."""
    return _text(lib().stk_version())


def _text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def check(result: int, callbacks: Optional[Callbacks] = None) -> int:
    """Passes a result on, or raises what the library says went wrong; what a callback raised comes first."""
    if callbacks is not None:
        callbacks.raise_first()
    if result < 0:
        raise error_of(result, _text(lib().stk_error_detail()) or _text(lib().stk_strerror(result)))
    return result


class Callbacks:
    """Keeps what callbacks raise until the C function that called them has returned: exceptions cannot pass through C."""

    def __init__(self) -> None:
        self._raised: list[BaseException] = []

    def progress(self, function: Optional[Callable[[str, int, int], object]]) -> Any:
        """A stk_progress_fn. A function that returns False, or raises, cancels the work."""
        as_call(function, "progress")
        if function is None:
            return s.ProgressFn()

        def call(_user: object, what: bytes, done: int, total: int) -> int:
            try:
                return 1 if function(what.decode("utf-8", "replace"), done, total) is False else 0
            except BaseException as error:
                self._raised.append(error)
                return 1

        return s.ProgressFn(call)

    def raise_first(self) -> None:
        if self._raised:
            raised, self._raised = self._raised, []
            raise raised[0]


_log_fn: Any = None


def set_log(function: Optional[Callable[[int, str], object]]) -> None:
    """
    Sends the library's log lines to `function(level, line)`, with levels as in the module logging; None drops them. For the whole
    process; call it before other threads use the library. What `function` raises is shown by sys.unraisablehook and ignored.
    """
    global _log_fn
    levels = {0: 40, 1: 30, 2: 20, 3: 10}

    def call(_user: object, level: int, line: bytes) -> None:
        assert function is not None
        function(levels.get(level, 10), line.decode("utf-8", "replace"))

    fn = s.LogFn(call) if function is not None else s.LogFn()
    lib().stk_log_set(fn, None)
    _log_fn = fn  # the library keeps its address
