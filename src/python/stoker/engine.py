"""The engine: steps, and everything that can be seen and set between them."""

from __future__ import annotations

import contextlib
import ctypes as c
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _structs as s
from ._arguments import kv_types, logits_flags, optional_ids
from ._closing import OpenEngine, raise_faults
from ._faults import Faults
from ._handle import Handle
from ._hooks import Hooks, PolicyLike
from ._native import Callbacks, check, lib
from ._predictor_hooks import PredictorHooks, PredictorLike
from .errors import InvalidArgumentError, StateError
from .model import Ids, Model, PathLike, encode_path, from_struct, ids_array
from .profile import Profile
from .timeline import Timeline
from .units import as_int, as_text, parse_bytes

if TYPE_CHECKING:
    from .session import Session

Float32 = npt.NDArray[np.float32]
_PLACE = {"auto": 0, "cpu": 1, "device": 2, "random": 3}
_NO_VRAM = 2**64 - 1


@dataclass(frozen=True)
class MemoryInfo:
    """What an engine reserved, in bytes, and what it uses: `io` and `cpu` name the backend of reads and the kernels, `policy`
    has its parameters behind a colon."""

    n_slot: int
    n_expert: int
    n_ctx: int
    n_threads: int
    n_warm: int
    predict_depth: int
    dense_bytes: int
    kv_bytes: int
    ram_bytes: int
    ram_bytes_min: int
    buffer_bytes: int
    huge_bytes: int
    io: str
    cpu: str
    policy: str
    scope: str
    predictor: str
    n_vram_slot: int
    device: str
    vram_bytes: int
    vram_dense_bytes: int
    vram_kv_bytes: int
    vram_buffer_bytes: int
    vram_free_bytes: int
    pinned_bytes: int
    n_device_layer: int


def _memory(address: int, ctype: Any, n: int, dtype: Any) -> Any:
    """The library's memory at an address as an array."""
    return np.frombuffer((ctype * n).from_address(address), dtype=dtype)


class Engine(Handle):
    """
    One model under fixed memory budgets. Use it in a `with` block; it belongs to one thread at a time (`cancel` apart).

    :param model: an open `Model`, or a path that the engine opens and closes itself.
    :param ram: bytes of expert slots in RAM, also as "8G"; None: what free memory allows, less a margin.
    :param n_ctx: positions of all sequences together; 0: the lesser of the model's context and 4,096.
    :param n_batch: most tokens of a step; 0: 512.
    :param n_seq: sequences, numbered from 0.
    :param n_logits: most entries of a step that ask for logits; 0: n_seq.
    :param threads: 0: the physical cores that this process may use.
    :param kv: "f16" or "f32", or a pair for K and V.
    :param io: "auto", "uring", "pread", or a modelled drive "emu:BANDWIDTH,LATENCY".
    :param policy: a built-in policy, "lru" or with parameters "lrfu:decay=0.9" (see `stoker.list_policies`), or one in Python: see
        `stoker.Policy`.
    :param predictor: what predicts the experts that are read ahead of their use: a built-in predictor (see `stoker.list_predictors`),
        "none", or one in Python: see `stoker.Predictor`; None: "gate". Nothing is predicted where every expert has a slot.
    :param device: "cuda", "emu" (emulated on the CPU, slowly), "none"; None: a GPU if there is one.
    :param vram: bytes of expert slots in the device's memory, 0 for none; None: what is free, less a margin.
    :param vram_policy: the eviction policy of the experts there; None: that of the mode, else "lfu".
    :param mode: what of the experts the device gets: "hybrid", a cache of those used most; "static", those of the last layers; "kt",
        as many of each layer; "kt-profiled", those used most by the trace `uses_from`; "lru-upload", whatever is used; None: "hybrid".
    :param n_cpu_layers: the first layers, whose attention stays on the CPU.
    :param predict_depth: how many layers ahead; 0: 1.
    :param scope: "global", one cache for all experts of a size, or "layer", one for each layer; None: "global".
    :param profile: a file of `tune`: its budget, policy, scope and predictor stand where `ram`, `policy`, `scope`, `predictor` do not.
    :param cost: a file of `calibrate` to start the cost table from.
    :param cpu: the most that kernels may use: "ref", "avx2", "avxvnni", "avx512".
    :param trace: a file to record the run to; it is complete when the engine is closed.
    :param warm: a file that keeps what the cache and the predictor know from run to run: read now if it is there, written by `close`.
    :param watch: turn reading ahead off while it does not pay.
    :param progress: called with (what, bytes done, bytes in all) while weights are read; returning False cancels.
    :raises BudgetError: names the least that would do.
    """

    _what = "engine"

    def __init__(
        self,
        model: Union[Model, PathLike],
        *,
        ram: Union[int, str, None] = None,
        n_ctx: int = 0,
        n_batch: int = 0,
        n_seq: int = 1,
        n_logits: int = 0,
        threads: int = 0,
        kv: Union[str, tuple[str, str]] = "f16",
        mlock: bool = False,
        seed: int = 0,
        io: Optional[str] = None,
        policy: PolicyLike = None,
        predictor: PredictorLike = None,
        device: Optional[str] = None,
        vram: Optional[Union[int, str]] = None,
        vram_policy: Optional[str] = None,
        mode: Optional[str] = None,
        uses_from: Optional[PathLike] = None,
        n_cpu_layers: int = 0,
        predict_depth: int = 0,
        scope: Optional[str] = None,
        profile: Optional[PathLike] = None,
        cost: Optional[PathLike] = None,
        cpu: Optional[str] = None,
        trace: Optional[PathLike] = None,
        warm: Optional[PathLike] = None,
        watch: bool = True,
        progress: Optional[Callable[[str, int, int], object]] = None,
    ) -> None:
        self._owns_model = not isinstance(model, Model)
        self.model = model if isinstance(model, Model) else Model(model)
        self._views: list[weakref.ref[Any]] = []
        self._timeline: Optional[Timeline] = None
        try:
            o = s.EngineOptionsStruct()
            lib().stk_engine_options_default(c.byref(o), c.sizeof(o))
            o.n_ctx = as_int(n_ctx, "n_ctx")
            o.n_batch = as_int(n_batch, "n_batch")
            o.n_seq_max = as_int(n_seq, "n_seq")
            o.n_logits = as_int(n_logits, "n_logits")
            o.n_threads = as_int(threads, "threads")
            o.kv_k_type, o.kv_v_type = kv_types(kv)
            o.mlock = bool(mlock)
            o.ram_bytes = parse_bytes(ram)
            o.seed = as_int(seed, "seed", high=2**64 - 1)
            if io is not None:
                o.io = as_text(io, "io")
            o.n_cpu_layers = as_int(n_cpu_layers, "n_cpu_layers")
            if vram is not None:
                o.vram_bytes = _NO_VRAM if vram == 0 else parse_bytes(vram)
            if device is not None:
                o.device = as_text(device, "device")
            if vram_policy is not None:
                o.vram_policy = as_text(vram_policy, "vram_policy")
            if mode is not None:
                o.mode = as_text(mode, "mode")
            if uses_from is not None:
                o.uses_from = encode_path(uses_from)
            o.predict_depth = as_int(predict_depth, "predict_depth")
            if scope is not None:
                o.scope = as_text(scope, "scope")
            if profile is not None:
                o.profile = encode_path(profile)
            if cost is not None:
                o.cost = encode_path(cost)
            if cpu is not None:
                o.cpu = as_text(cpu, "cpu")
            if trace is not None:
                o.trace = encode_path(trace)
            if warm is not None:
                o.warm = encode_path(warm)
            o.no_watch = not watch
            callbacks = Callbacks()
            o.progress = callbacks.progress(progress)
            policy_hooks, predictor_hooks = Hooks.of(policy), PredictorHooks.of(predictor)
            if policy_hooks is not None:
                o.hooks = c.pointer(policy_hooks.struct)
            elif policy is not None:
                o.policy = str(policy).encode()
            if predictor_hooks is not None:
                o.predictor_hooks = c.pointer(predictor_hooks.struct)
            elif predictor is not None:
                o.predictor = str(predictor).encode()
            self._hooks: list[Faults] = [each for each in (policy_hooks, predictor_hooks) if each is not None]
            out = c.c_void_p()
            with self.model._use() as m:
                rc = lib().stk_engine_open(c.byref(out), m, c.byref(o))
                for each in self._hooks if rc < 0 else ():
                    each.raise_failed_open()
                check(rc, callbacks)
        except BaseException:
            if self._owns_model:
                self.model.close()
            raise
        assert out.value is not None
        super().__init__(out.value)
        self.model._n_engine += 1
        info = self.model.info
        self.memory: MemoryInfo = self._get_memory()
        self.n_ctx = self.memory.n_ctx
        self.n_batch = int(n_batch) or min(self.n_ctx, 512)
        self.n_seq = int(n_seq) or 1
        self.n_logits = int(n_logits) or min(self.n_seq, self.n_batch)
        self._n_vocab, self._n_embd = info.n_vocab, info.n_embd
        self._n_step_tokens = 0
        self._batch = s.BatchStruct()

    def _get_memory(self) -> MemoryInfo:
        m = s.MemoryInfoStruct()
        with self._use() as p:
            check(lib().stk_engine_get_memory(p, c.byref(m)))
        return from_struct(MemoryInfo, m)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.memory.n_slot} of {self.memory.n_expert} experts fit"
        return f"<stoker.Engine of {self.model.path!r}, {state}>"

    # ---- Close ----

    def close(self) -> None:
        """
        Ends the trace and frees all. Where an array of `logits(copy=False)` is still in use, the memory is freed when it is not.

        :raises ReadWriteError, NoSpaceError: the trace or the file of `warm` could not be written; the engine is closed anyway.
        """
        super().close()

    def _close_native(self, pointer: Any) -> None:
        if self._timeline is not None:
            lib().stk_engine_set_timeline(pointer._obj, None)
            self._timeline = None
        alive = [view for view in (ref() for ref in self._views) if view is not None]
        native = OpenEngine(pointer._obj.value, self.model, self._owns_model, self._hooks)
        if alive:
            native.close_after(alive)
        else:
            native.close()

    # ---- Steps ----

    def step(
        self,
        tokens: Ids,
        *,
        seq: Optional[Sequence[int]] = None,
        pos: Optional[Sequence[int]] = None,
        logits: Union[str, Sequence[bool], None] = None,
    ) -> int:
        """
        Computes one step: a prompt chunk, a decoded token, several sequences. On failure no sequence has moved.

        :param tokens: [n] ids, 1 to n_batch of them.
        :param seq: [n] sequences; None: all 0.
        :param pos: [n] positions; None: each continues its sequence.
        :param logits: which entries compute logits: "last", "all", or [n] flags.
        :returns: n
        :raises PolicyError, PredictorError: a policy or predictor in Python failed; the step was finished, and its results are there.
        :raises StateError: an array of `logits(copy=False)` or `hidden(copy=False)` is still in use.
        """
        array = ids_array(tokens)
        n = len(array)
        batch = s.BatchStruct(n=n, token=c.addressof(array))
        seqs, positions, flags = optional_ids(seq, n, "seq"), optional_ids(pos, n, "pos"), logits_flags(logits, n)
        batch.seq = c.addressof(seqs) if seqs is not None else None
        batch.pos = c.addressof(positions) if positions is not None else None
        batch.logits = c.addressof(flags) if flags is not None else None
        self._run(batch, n)
        return n

    def _step_one(self, token: int, seq: int) -> None:
        """A decoded token: `step` without what it does not need."""
        token_c, seq_c = c.c_int32(token), c.c_int32(seq)
        batch = self._batch
        batch.n, batch.token, batch.seq = 1, c.addressof(token_c), c.addressof(seq_c)
        self._run(batch, 1)

    def _run(self, batch: s.BatchStruct, n: int) -> None:
        if self._views and self._pointer is not None:  # of a closed engine that is the error
            self._views = [ref for ref in self._views if ref() is not None]
            if self._views:
                raise StateError(
                    f"{len(self._views)} array(s) of the last step's logits or hidden states are still in use without a copy, and "
                    "the next step writes there: delete them first, or ask for copies"
                )
        with self._use() as p:
            self._n_step_tokens = 0
            rc = lib().stk_step(p, c.byref(batch))
            if rc >= 0:
                self._n_step_tokens = n
        self._raise_hook_errors(rc < 0)
        check(rc)

    def _raise_hook_errors(self, failed: bool = False) -> None:
        if self._hooks and not failed:
            raise_faults(self._hooks)

    def cancel(self) -> None:
        """Makes the running or next step raise CanceledError at the next layer. Any thread may call it."""
        with self._lock:
            if self._pointer is None or self._pid != os.getpid():
                return
            lib().stk_cancel(self._pointer)

    # ---- Results of the last step ----

    def _entry(self, i: int) -> int:
        n = self._n_step_tokens
        index = as_int(i, "entry", -(2**31), 2**31)
        if not n:
            raise StateError("there is no step whose results could be shown")
        if not -n <= index < n:
            raise InvalidArgumentError(f"entry {index} of a step of {n} tokens")
        return index % n

    def _floats(self, getter: str, i: int, n: int, copy: bool) -> Float32:
        with self._use() as p:
            address = getattr(lib(), getter)(p, self._entry(i))
            if not address:
                raise StateError(f"entry {i} of the last step did not ask for logits")
            view: Float32 = _memory(address, c.c_float, n, np.float32)
            if copy:
                return np.array(view)
            view.flags.writeable = False
            self._views.append(weakref.ref(view))
            return view

    def logits(self, i: int = -1, *, copy: bool = True) -> Float32:
        """
        Logits of entry i of the last step, [n_vocab] float32.

        With copy=False the array shows the engine's own memory, read-only: the next step refuses to run while it, or a view of
        it, is in use.
        """
        return self._floats("stk_get_logits", i, self._n_vocab, copy)

    def hidden(self, i: int = -1, *, copy: bool = True) -> Float32:
        """Hidden state of entry i after the last layer, before the final norm, [n_embd] float32; where logits were asked for."""
        return self._floats("stk_get_hidden", i, self._n_embd, copy)

    def routing(self, layer: int) -> tuple[npt.NDArray[np.uint16], Float32]:
        """
        Routing of the last step in one layer: expert numbers in rank order, [n, k] uint16, and their weights, [n, k] float32; k is 0
        in a layer without experts.
        """
        ids, weights = c.c_void_p(), c.c_void_p()
        n = self._n_step_tokens
        if not n:
            raise StateError("there is no step whose routing could be shown")
        with self._use() as p:
            count = check(lib().stk_get_routing(p, as_int(layer, "layer"), c.byref(ids), c.byref(weights)))
            if not count or ids.value is None or weights.value is None:
                return np.empty((n, 0), np.uint16), np.empty((n, 0), np.float32)
            shape = (n, count // n)
            return (
                _memory(ids.value, c.c_uint16, count, np.uint16).reshape(shape).copy(),
                _memory(weights.value, c.c_float, count, np.float32).reshape(shape).copy(),
            )

    # ---- Sequences ----

    def length(self, seq: int = 0) -> int:
        """Number of positions that a sequence holds."""
        with self._use() as p:
            return check(lib().stk_seq_length(p, as_int(seq, "seq", -(2**31), 2**31 - 1)))

    def trim(self, seq: int, n_pos: int) -> None:
        """Forgets all positions of a sequence from `n_pos` on."""
        with self._use() as p:
            check(lib().stk_seq_trim(p, as_int(seq, "seq", -(2**31), 2**31 - 1), as_int(n_pos, "n_pos", 0, 2**31 - 1)))

    def session(self, seq: int = 0) -> Session:
        """Text in and out of one sequence: see `Session`."""
        from .session import Session

        return Session(self, seq)

    # ---- The cache ----

    def residency(self, layer: Optional[int] = None) -> npt.NDArray[np.bool_]:
        """Which experts are in memory: of a layer [n_expert], or of all [n_layer, n_expert]; layers without any are all False."""
        return self.tiers(layer).astype(np.bool_)

    def tiers(self, layer: Optional[int] = None) -> npt.NDArray[np.uint8]:
        """Where experts are: 0 on the drive, 1 in RAM, 2 in the device's memory; shapes as of `residency`."""
        info = self.model.info
        if layer is None:
            return np.stack([self.tiers(i) for i in range(info.n_layer)])
        flags = np.zeros(info.n_expert, np.uint8)
        with self._use() as p:
            check(lib().stk_get_residency(p, as_int(layer, "layer"), flags.ctypes.data, flags.size))
        return flags

    def drop_experts(self) -> None:
        """Drops every expert from the cache: a cold start."""
        with self._use() as p:
            check(lib().stk_engine_drop_experts(p))
        self._raise_hook_errors()

    def resize(self, ram: Union[int, str]) -> None:
        """
        Gives expert slots another budget, between steps: "8G" or bytes; more than all experts take counts as all. Where it is less,
        the policy's victims leave and their memory goes back to the system; experts that stay keep their bytes.

        :raises BudgetError: names the least, or what is free; nothing has changed.
        """
        with self._use() as p:
            check(lib().stk_engine_resize(p, parse_bytes(ram)))
        self.memory = self._get_memory()
        self._raise_hook_errors()

    def save_residency(self, path: PathLike) -> None:
        """Writes what another engine of this model may take as `warm`, whole or not at all."""
        with self._use() as p:
            check(lib().stk_engine_save_residency(p, encode_path(path)))

    def stats(self) -> s.Stats:
        """Counters since the start or the last `reset_stats`."""
        stats = s.Stats()
        with self._use() as p:
            check(lib().stk_engine_get_stats(p, c.byref(stats)))
        return stats

    def predicted(self, depth: int = 1) -> s.PredictCount:
        """How predictions `depth` layers ahead did since the start: `recall`, `precision`; all 0 where nothing is predicted."""
        count = s.PredictCount()
        with self._use() as p:
            check(lib().stk_engine_get_predicted(p, as_int(depth, "depth"), c.byref(count)))
        return count

    def reset_stats(self) -> None:
        """Counts from 0 again."""
        with self._use() as p:
            check(lib().stk_engine_reset_stats(p))

    # ---- Where the time goes ----

    def set_profile(self, on: bool) -> None:
        """Turns the clock of stages on, from zero, or off, as it is at first. It costs well under a thousandth of a step."""
        with self._use() as p:
            check(lib().stk_engine_set_profile(p, bool(on)))

    def profile(self) -> Profile:
        """Where the time of steps went since `set_profile(True)`; all figures are 0 before the first step after it."""
        profile = s.ProfileStruct()
        with self._use() as p:
            check(lib().stk_engine_get_profile(p, c.byref(profile)))
            return Profile._of(profile)

    def set_timeline(self, timeline: Optional[Timeline]) -> None:
        """What the queues do in the next steps is taken down there, see `Timeline`; None: no longer. What was there stays."""
        if timeline is not None and not isinstance(timeline, Timeline):
            raise TypeError(f"a timeline is a stoker.Timeline, not {type(timeline).__name__}")
        if timeline is not None and timeline._attached() not in (None, self):
            raise StateError("this timeline belongs to another engine")
        with contextlib.ExitStack() as stack:
            pointer = stack.enter_context(timeline._use()) if timeline is not None else None
            check(lib().stk_engine_set_timeline(stack.enter_context(self._use()), pointer))
            self._timeline = timeline
            if timeline is not None:
                timeline._engine = weakref.ref(self)

    def measure_layer(self) -> float:
        """What is left of a layer when its jobs have nothing to do, in ns: waking, meeting, counting. Takes milliseconds."""
        out = c.c_double()
        with self._use() as p:
            check(lib().stk_engine_measure_layer(p, c.byref(out)))
        return out.value

    def measure_drive(self) -> float:
        """How fast experts are read when nothing is computed, in bytes/s. Takes 1.5 s and drops every expert from the cache."""
        out = c.c_double()
        with self._use() as p:
            rc = lib().stk_engine_measure_drive(p, c.byref(out))
        self._raise_hook_errors(rc < 0)
        check(rc)
        return out.value

    # ---- Experiments ----

    def force_route(self, experts: Optional[Sequence[int]], layer: int = -1) -> None:
        """Routes every token of a layer (-1: of all) to these k experts with equal weights; None gives the router back."""
        with self._use() as p:
            number = as_int(layer, "layer", -1, 2**31 - 1)
            if experts is None:
                check(lib().stk_force_route(p, number, None, 0))
                return
            ids = (c.c_uint16 * len(experts))(*[as_int(x, "expert", 0, 2**16 - 1) for x in experts])
            check(lib().stk_force_route(p, number, ids, len(experts)))

    def force_placement(self, place: str) -> None:
        """Where experts are computed from the next step on: "auto", "cpu", "device" or "random"."""
        if place not in _PLACE:
            raise InvalidArgumentError(f"placement '{place}'; there are {', '.join(_PLACE)}")
        with self._use() as p:
            check(lib().stk_force_placement(p, _PLACE[place]))
