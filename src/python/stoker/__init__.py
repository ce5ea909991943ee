"""
Stoker runs Mixture-of-Experts language models that are larger than memory. This package drives its C library: models, engines and
sessions; replays of traces; eviction policies and predictors in Python.

    import stoker

    with stoker.Engine("model.gguf", ram="8G") as engine:
        for piece in engine.session().generate("Once upon a time", max_tokens=100):
            print(piece, end="", flush=True)

The output never depends on what was cached: logits are the same bits for every budget, policy and number of threads.
"""

from ._native import ABI_VERSION, library_path, set_log, version
from ._structs import PredictCount, ReplayCount, Stats
from .arrays import TraceArrays
from .engine import Engine, MemoryInfo
from .errors import (
    BudgetError,
    CanceledError,
    ContextFullError,
    DeviceLostError,
    FormatError,
    HookError,
    InvalidArgumentError,
    LibraryError,
    NoSpaceError,
    OutOfMemoryError,
    PolicyError,
    PredictorError,
    ReadWriteError,
    StateError,
    StokerError,
    UnsupportedError,
)
from .machine import Finding, Limits, MachineInfo, calibrate, check_cost, doctor, machine, measure_limits
from .methods import Method, Param, list_policies, list_predictors
from .model import Decoder, ExpertClass, Metadata, Model, ModelInfo, TensorInfo
from .policies import DecayedFrequency, PythonLRU, ScoreLRU
from .policy import NO_EXPERT, Busy, Event, Events, Policy, ScorePolicy, Tokens, Why
from .predictor import BatchPredictor, Predictor, PredictorEvent
from .profile import SPAN, Profile, stage_names
from .replay import ReplayResult, SweepPoint, grid, replay, sweep
from .sampler import GREEDY, Sampler, Sampling
from .session import Generation, Session
from .synth import synth
from .timeline import NO_LAYER, WORK, Timeline, WorkKind, work_kinds
from .trace import Trace, TraceEvent, TraceInfo, convert
from .tune import TuneResult, tune
from .units import parse_bytes

__all__ = [
    "ABI_VERSION",
    "GREEDY",
    "NO_EXPERT",
    "NO_LAYER",
    "SPAN",
    "WORK",
    "BatchPredictor",
    "BudgetError",
    "Busy",
    "CanceledError",
    "ContextFullError",
    "DecayedFrequency",
    "Decoder",
    "DeviceLostError",
    "Engine",
    "Event",
    "Events",
    "ExpertClass",
    "Finding",
    "FormatError",
    "Generation",
    "HookError",
    "InvalidArgumentError",
    "LibraryError",
    "Limits",
    "MachineInfo",
    "MemoryInfo",
    "Metadata",
    "Method",
    "Model",
    "ModelInfo",
    "NoSpaceError",
    "OutOfMemoryError",
    "Param",
    "Policy",
    "PolicyError",
    "PredictCount",
    "Predictor",
    "PredictorError",
    "PredictorEvent",
    "Profile",
    "PythonLRU",
    "ReadWriteError",
    "ReplayCount",
    "ReplayResult",
    "Sampler",
    "Sampling",
    "ScoreLRU",
    "ScorePolicy",
    "Session",
    "StateError",
    "Stats",
    "StokerError",
    "SweepPoint",
    "TensorInfo",
    "Timeline",
    "Tokens",
    "Trace",
    "TraceArrays",
    "TraceEvent",
    "TraceInfo",
    "TuneResult",
    "UnsupportedError",
    "Why",
    "WorkKind",
    "calibrate",
    "check_cost",
    "convert",
    "doctor",
    "grid",
    "library_path",
    "list_policies",
    "list_predictors",
    "machine",
    "measure_limits",
    "parse_bytes",
    "replay",
    "set_log",
    "stage_names",
    "sweep",
    "synth",
    "tune",
    "version",
    "work_kinds",
]
