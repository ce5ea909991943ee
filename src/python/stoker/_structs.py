"""The structs of stoker.h. A class's annotations are its fields: one place for the C layout and for the types that Python sees.

Long because it follows one header.
"""

from __future__ import annotations

import ctypes as c
from typing import Annotated, Any, TypeVar, get_type_hints

U32 = Annotated[int, c.c_uint32]
I32 = Annotated[int, c.c_int32]
U64 = Annotated[int, c.c_uint64]
F32 = Annotated[float, c.c_float]
F64 = Annotated[float, c.c_double]
Text = Annotated[bytes, c.c_char_p]
Address = Annotated[Any, c.c_void_p]
U64x4 = Annotated[Any, c.c_uint64 * 4]
PointerU8 = Annotated[Any, c.POINTER(c.c_uint8)]
PointerU16 = Annotated[Any, c.POINTER(c.c_uint16)]
PointerU32 = Annotated[Any, c.POINTER(c.c_uint32)]
PointerI32 = Annotated[Any, c.POINTER(c.c_int32)]
PointerU64 = Annotated[Any, c.POINTER(c.c_uint64)]
PointerF32 = Annotated[Any, c.POINTER(c.c_float)]
PointerF64 = Annotated[Any, c.POINTER(c.c_double)]

# int (*)(void *user, const char *what, uint64_t done, uint64_t total)
ProgressFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_uint64, c.c_uint64)
# void (*)(void *user, int level, const char *line)
LogFn = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
# void (*)(void *user, int level, const char *topic, const char *found, const char *advice)
FindingFn = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p, c.c_char_p, c.c_char_p)

_S = TypeVar("_S", bound="Struct")


class Struct(c.Structure):
    """A struct of stoker.h that begins with struct_bytes."""

    struct_bytes: U32

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.struct_bytes = c.sizeof(self)

    def as_dict(self) -> dict[str, Any]:
        """All figures by name."""
        return {name: getattr(self, name) for name in field_names(type(self)) if name not in ("struct_bytes", "reserved")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.as_dict().items())})"


def field_names(struct: type[c.Structure]) -> list[str]:
    """The names of a struct's fields in their order."""
    return [field[0] for field in getattr(struct, "_fields_", ())]


def layout(cls: type[_S]) -> type[_S]:
    """Lays out a struct by its annotations; struct_bytes comes first."""
    hints = get_type_hints(cls, include_extras=True)
    names = [n for n in ("struct_bytes", *cls.__annotations__) if n in hints]
    cls._fields_ = [(n, getattr(hints[n], "__metadata__", (hints[n],))[0]) for n in dict.fromkeys(names)]
    return cls


@layout
class ModelInfoStruct(Struct):
    n_layer: U32
    n_embd: U32
    n_vocab: U32
    n_ctx_train: U32
    n_head: U32
    n_head_kv: U32
    head_dim: U32
    n_expert: U32
    n_expert_used: U32
    n_moe_layer: U32
    n_file: U32
    file_bytes: U64
    n_param: U64
    expert_bytes: U64
    dense_bytes: U64
    expert_bytes_min: U64
    expert_bytes_max: U64
    token_bytes: U64
    arch: Text
    name: Text
    ram_bytes_min: U64
    ram_bytes_all: U64
    packed: U32
    reserved: U32


@layout
class ExpertClassInfoStruct(Struct):
    n_layer: U32
    bytes: U64
    gate_bytes: U64
    up_bytes: U64
    down_bytes: U64
    gate_type: Text
    up_type: Text
    down_type: Text


@layout
class TensorInfoStruct(Struct):
    n_dim: U32
    dim: U64x4
    offset: U64
    bytes: U64
    file: U32
    type: U32
    name: Text
    type_name: Text


class ChatMessageStruct(c.Structure):
    _fields_ = [("role", c.c_char_p), ("text", c.c_char_p)]


@layout
class PolicyEventStruct(Struct):
    layer: U32
    step: U64
    n_tok: U32
    k: U32
    n_top: U32
    n: U32
    keys: PointerU32
    counts: PointerU32
    seq: PointerI32
    pos: PointerI32
    token: PointerI32
    ids: PointerU16
    weights: PointerF32
    top_ids: PointerU16
    top_scores: PointerF32


@layout
class PolicyShapeStruct(Struct):
    instance: U32
    n_key: U32
    n_expert: U32
    n_slot: U32
    reserved: U32
    seed: U64


OpenFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(PolicyShapeStruct), c.POINTER(c.c_void_p))
CloseFn = c.CFUNCTYPE(None, c.c_void_p)
TouchFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(PolicyEventStruct))
KeyFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32)
InsertedFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_int)
VictimFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_uint64), c.POINTER(c.c_uint32))
ScoreFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(PolicyEventStruct), c.POINTER(c.c_double))
FaultFn = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)


@layout
class PolicyHooksStruct(Struct):
    reserved: U32
    name: Text
    user: Address
    open: Annotated[Any, OpenFn]
    close: Annotated[Any, CloseFn]
    touch: Annotated[Any, TouchFn]
    admit: Annotated[Any, KeyFn]
    inserted: Annotated[Any, InsertedFn]
    evicted: Annotated[Any, KeyFn]
    resized: Annotated[Any, KeyFn]
    victim: Annotated[Any, VictimFn]
    score: Annotated[Any, ScoreFn]
    scores: PointerF64
    n_scores: U64
    fault: Annotated[Any, FaultFn]


class PredictionStruct(c.Structure):
    _fields_ = [("expert", c.c_uint32), ("p", c.c_float)]


@layout
class PredictorShapeStruct(Struct):
    n_layer: U32
    n_expert: U32
    k: U32
    depth: U32
    n_max: U32
    seed: U64


PredictorOpenFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(PredictorShapeStruct), c.POINTER(c.c_void_p))
ObserveFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(PolicyEventStruct), c.POINTER(c.c_float), c.c_uint32)
SuggestFn = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_uint32, c.POINTER(PredictionStruct), c.c_uint32)


@layout
class PredictorHooksStruct(Struct):
    wants_lookahead: U32
    name: Text
    user: Address
    open: Annotated[Any, PredictorOpenFn]
    close: Annotated[Any, CloseFn]
    observe: Annotated[Any, ObserveFn]
    suggest: Annotated[Any, SuggestFn]
    list: Annotated[Any, c.POINTER(PredictionStruct)]
    first: PointerU64
    n_list: U64
    n_event: U64
    depth: U32
    reserved: U32
    fault: Annotated[Any, FaultFn]


@layout
class EngineOptionsStruct(Struct):
    n_ctx: U32
    n_batch: U32
    n_seq_max: U32
    n_logits: U32
    n_threads: U32
    kv_k_type: U32
    kv_v_type: U32
    mlock: U32
    float_mode: U32
    ram_bytes: U64
    seed: U64
    io: Text
    policy: Text
    cpu: Text
    trace: Text
    progress: Annotated[Any, ProgressFn]
    progress_user: Address
    predictor: Text
    predict_depth: U32
    reserved2: U32
    cost: Text
    hooks: Annotated[Any, c.POINTER(PolicyHooksStruct)]
    warm: Text
    no_watch: U32
    n_cpu_layers: U32
    predictor_hooks: Annotated[Any, c.POINTER(PredictorHooksStruct)]
    scope: Text
    profile: Text
    device: Text
    vram_policy: Text
    vram_bytes: U64
    vram_cap_bytes: U64
    pin_bytes: U64
    staging_bytes: U64


@layout
class MemoryInfoStruct(Struct):
    n_slot: U32
    n_expert: U32
    n_ctx: U32
    dense_bytes: U64
    kv_bytes: U64
    ram_bytes: U64
    ram_bytes_min: U64
    buffer_bytes: U64
    huge_bytes: U64
    io: Text
    cpu: Text
    n_threads: U32
    n_warm: U32
    policy: Text
    scope: Text
    predictor: Text
    predict_depth: U32
    float_mode: U32
    device: Text
    vram_bytes: U64
    vram_dense_bytes: U64
    vram_kv_bytes: U64
    vram_buffer_bytes: U64
    vram_free_bytes: U64
    pinned_bytes: U64
    n_device_layer: U32
    n_vram_slot: U32


@layout
class BatchStruct(Struct):
    n: U32
    token: Address
    seq: Address
    pos: Address
    logits: Address


@layout
class Stats(Struct):
    """Counters of a run. Times are in nanoseconds; a lookup is one distinct expert of an event, a layer of a step."""

    reserved: U32
    n_step: U64
    n_token: U64
    n_event: U64
    n_lookup: U64
    n_pair: U64
    n_hit: U64
    n_miss: U64
    n_evict: U64
    n_wave: U64
    bytes: U64
    read_bytes: U64
    step_ns: U64
    dense_ns: U64
    expert_ns: U64
    arrive_ns: U64
    wait_ns: U64
    io_ns: U64
    trace_ns: U64
    n_prefetch: U64
    n_prefetch_used: U64
    n_switch: U64
    n_vram_hit: U64
    n_fetch: U64
    n_fetch_failed: U64
    n_return: U64
    n_host: U64
    up_bytes: U64
    down_bytes: U64
    device_ns: U64

    @property
    def hit_rate(self) -> float:
        """Lookups that found their expert resident, 0 to 1; 0 before the first lookup."""
        return self.n_hit / self.n_lookup if self.n_lookup else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens by the time inside steps; 0 where no time was counted."""
        return self.n_token / (self.step_ns * 1e-9) if self.step_ns else 0.0


class SpanStruct(c.Structure):
    _fields_ = [("begin_ns", c.c_uint64), ("ns", c.c_uint32), ("layer", c.c_uint16), ("stage", c.c_uint16)]


class WorkStruct(c.Structure):
    _fields_ = [
        *((name, c.c_uint64) for name in ("begin_ns", "end_ns", "step", "bytes")),
        *((name, c.c_uint32) for name in ("kind", "layer", "expert", "n_expert")),
    ]


@layout
class ProfileStruct(Struct):
    n_layer: U32
    n_step: U64
    n_token: U64
    stage_ns: PointerU64
    span: Annotated[Any, c.POINTER(SpanStruct)]
    n_span: U32
    reserved: U32
    bytes: U64
    int8_ops: U64
    float_ops: U64


@layout
class LimitsStruct(Struct):
    n_threads: U32
    read_bytes_per_s: F64
    int8_ops_per_s: F64
    float_ops_per_s: F64
    run_ns: F64
    phase_ns: F64
    buffer_bytes: U64
    huge_bytes: U64
    cpu: Text


@layout
class MachineInfoStruct(Struct):
    n_cpu: U32
    n_core: U32
    n_threads: U32
    available_bytes: U64
    cpu: Text
    name: Annotated[bytes, c.c_char * 64]


@layout
class CalibrateOptionsStruct(Struct):
    n_threads: U32
    ram_bytes: U64
    cpu: Text
    io: Text
    progress: Annotated[Any, ProgressFn]
    progress_user: Address


@layout
class SamplerOptionsStruct(Struct):
    top_k: I32
    temperature: F32
    top_p: F32
    min_p: F32
    repeat_penalty: F32
    repeat_last_n: I32
    reserved: U32
    seed: U64


@layout
class TraceInfoStruct(Struct):
    n_layer: U32
    n_expert: U32
    k: U32
    n_batch: U32
    recorded: U32
    sized: U32
    reserved: U32
    expert_bytes: U64
    n_slot: U64
    ram_bytes: U64
    format: Text
    model: Text
    policy: Text
    io: Text
    params: Text


@layout
class TraceEventStruct(Struct):
    decode: U32
    step: U64
    layer: U32
    model_layer: U32
    n_tok: U32
    k: U32
    n_top: U32
    n_expert: U32
    seq: Address
    pos: Address
    token: Address
    ids: Address
    weights: Address
    top_ids: Address
    top_scores: Address


@layout
class TraceConvertOptionsStruct(Struct):
    format: U32
    first_step: U64
    n_step: U64
    expert_bytes: U64
    progress: Annotated[Any, ProgressFn]
    progress_user: Address


class ReplayCount(c.Structure):
    """What happened in a phase or a layer: as in `Stats`."""

    n_token: U64
    n_event: U64
    n_lookup: U64
    n_hit: U64
    n_miss: U64
    n_evict: U64
    bytes: U64
    read_bytes: U64
    step_ns: U64
    dense_ns: U64
    expert_ns: U64
    arrive_ns: U64
    wait_ns: U64

    _fields_ = [(name, c.c_uint64) for name in __annotations__]

    @property
    def hit_rate(self) -> float:
        """Lookups that found their expert resident, 0 to 1; 0 before the first lookup."""
        return self.n_hit / self.n_lookup if self.n_lookup else 0.0

    def __repr__(self) -> str:
        return f"ReplayCount({', '.join(f'{name}={getattr(self, name)}' for name in field_names(ReplayCount))})"


class PredictCount(c.Structure):
    """
    How predictions did against what was then used: of `n_event` events that something was predicted for, with `n_lookup` distinct
    experts, an event's n experts are looked for among its first n predictions (`n_found`) and its first 2n (`n_found2`). `n_predicted`
    experts were named in all, `n_used` of them used.
    """

    n_event: U64
    n_lookup: U64
    n_found: U64
    n_found2: U64
    n_predicted: U64
    n_used: U64

    _fields_ = [(name, c.c_uint64) for name in __annotations__]

    @property
    def recall(self) -> float:
        """Share of the experts used that were among as many predictions (recall@k), 0 to 1; 0 where nothing was predicted."""
        return self.n_found / self.n_lookup if self.n_lookup else 0.0

    @property
    def recall2(self) -> float:
        """The same among twice as many predictions (recall@2k)."""
        return self.n_found2 / self.n_lookup if self.n_lookup else 0.0

    @property
    def precision(self) -> float:
        """Share of the predictions that were used, 0 to 1; 0 without any."""
        return self.n_used / self.n_predicted if self.n_predicted else 0.0

    def __repr__(self) -> str:
        return f"PredictCount({', '.join(f'{name}={getattr(self, name)}' for name in field_names(PredictCount))})"


class ReplayLayerStruct(c.Structure):
    _fields_ = [("layer", c.c_uint32), ("n_slot", c.c_uint32), ("prefill", ReplayCount), ("decode", ReplayCount)]


@layout
class ReplayTiers(Struct):
    """A phase of a replay with VRAM: where experts were, where they were computed, what moved, and how long each queue worked."""

    reserved: U32
    n_token: U64
    n_event: U64
    n_lookup: U64
    n_vram: U64
    n_ram: U64
    n_gpu: U64
    n_fetch: U64
    n_bypass: U64
    n_cpu: U64
    link_bytes: U64
    read_bytes: U64
    step_ns: U64
    dense_ns: U64
    event_ns: U64
    cpu_ns: U64
    nvme_ns: U64
    link_ns: U64
    gpu_ns: U64


@layout
class ReplayDetailStruct(Struct):
    sized: U32
    n_sequence: U64
    n_expert: U64
    token_slots: U64
    prefill: ReplayCount
    decode: ReplayCount
    layers: Annotated[Any, c.POINTER(ReplayLayerStruct)]
    n_layer_max: U32
    n_layer: U32
    policy: Annotated[Any, c.c_char * 64]
    predicted: Annotated[Any, PredictCount * 3]
    scope: U32
    reserved: U32
    vram_bytes: U64
    tiers_prefill: ReplayTiers
    tiers_decode: ReplayTiers


@layout
class ReplayOptionsStruct(Struct):
    verify: U32
    ram_bytes: U64
    n_slot: U64
    policy: Text
    io: Text
    seed: U64
    progress: Annotated[Any, ProgressFn]
    progress_user: Address
    fraction: F64
    scope: U32
    reset: U32
    params: Text
    cost: Text
    expert_bytes: U64
    detail: Annotated[Any, c.POINTER(ReplayDetailStruct)]
    hooks: Annotated[Any, c.POINTER(PolicyHooksStruct)]
    predictor: Text
    predictor_hooks: Annotated[Any, c.POINTER(PredictorHooksStruct)]
    predict_depth: U32
    ahead: U32
    profile: Text
    vram_bytes: U64
    mode: Text
    uses_from: Text
    timeline: Address
    model: Address
    model_shape: Text


@layout
class PlanOptionsStruct(Struct):
    n_ctx: U32
    n_batch: U32
    n_seq_max: U32
    n_threads: U32
    kv_k_type: U32
    kv_v_type: U32
    reserved: U32
    ram_bytes: U64
    ram_free_bytes: U64
    vram_bytes: U64
    vram_cap_bytes: U64
    cost: Text


@layout
class PlanInfoStruct(Struct):
    gpu: U32
    n_ctx: U32
    n_ctx_max: U32
    n_expert: U32
    n_slot_vram: U32
    n_slot_ram: U32
    reserved: U32
    dense_bytes: U64
    kv_bytes: U64
    buffer_bytes: U64
    staging_bytes: U64
    vram_bytes: U64
    vram_used_bytes: U64
    vram_cap_bytes: U64
    ram_bytes: U64
    ram_used_bytes: U64
    ram_free_bytes: U64
    nvme_bytes: U64
    vram_hit: F64
    ram_hit: F64
    decode_tok_s: F64
    decode_tok_s_uniform: F64
    prefill_tok_s: F64
    machine: Annotated[Any, c.c_char * 128]
    gpu_name: Annotated[Any, c.c_char * 128]


@layout
class ReplayResultStruct(Struct):
    complete: U32
    n_slot: U64
    ram_bytes: U64
    virtual_ns: U64
    stats: Stats


@layout
class TuneOptionsStruct(Struct):
    n_threads: U32
    ram_bytes: U64
    fraction: F64
    io: Text
    cost: Text
    expert_bytes: U64
    seed: U64
    model: Address
    profile: Text
    report: Text
    state: Text
    progress: Annotated[Any, ProgressFn]
    progress_user: Address
    model_shape: Text


@layout
class TuneResultStruct(Struct):
    n_config: U32
    n_replay: U32
    n_resumed: U32
    n_fold: U32
    timed: U32
    scope: U32
    fitted: U32
    depth: U32
    n_tied: U32
    ram_bytes: U64
    n_sequence: U64
    n_token: U64
    fraction: F64
    hit_rate: F64
    default_hit_rate: F64
    bound_hit_rate: F64
    tok_s: F64
    default_tok_s: F64
    margin: F64
    margin_low: F64
    margin_high: F64
    tie_margin: F64
    cache_hit_rate: F64
    default_cache_hit_rate: F64
    policy: Annotated[bytes, c.c_char * 256]
    predictor: Annotated[bytes, c.c_char * 256]


@layout
class PackOptionsStruct(Struct):
    reserved: U32
    io: Text
    progress: Annotated[Any, ProgressFn]
    progress_user: Address


@layout
class SynthOptionsStruct(Struct):
    n_layer: U32
    n_vocab: U32
    reserved: U32
    seed: U64
    shape: Text
    type: Text
    route_from: Text
    progress: Annotated[Any, ProgressFn]
    progress_user: Address


@layout
class MethodInfoStruct(Struct):
    n_param: U32
    name: Text
    idea: Text
    replay_only: U32
    reserved: U32


@layout
class ParamInfoStruct(Struct):
    reserved: U32
    name: Text
    what: Text
    least: F64
    most: F64
    initial: F64


# The C name of each struct.
STRUCTS: dict[str, type[c.Structure]] = {
    "stk_model_info": ModelInfoStruct,
    "stk_expert_class_info": ExpertClassInfoStruct,
    "stk_tensor_info": TensorInfoStruct,
    "stk_chat_message": ChatMessageStruct,
    "stk_policy_event": PolicyEventStruct,
    "stk_policy_shape": PolicyShapeStruct,
    "stk_policy_hooks": PolicyHooksStruct,
    "stk_method_info": MethodInfoStruct,
    "stk_param_info": ParamInfoStruct,
    "stk_prediction": PredictionStruct,
    "stk_predict_count": PredictCount,
    "stk_predictor_shape": PredictorShapeStruct,
    "stk_predictor_hooks": PredictorHooksStruct,
    "stk_engine_options": EngineOptionsStruct,
    "stk_memory_info": MemoryInfoStruct,
    "stk_batch": BatchStruct,
    "stk_stats": Stats,
    "stk_span": SpanStruct,
    "stk_work": WorkStruct,
    "stk_profile": ProfileStruct,
    "stk_limits": LimitsStruct,
    "stk_machine_info": MachineInfoStruct,
    "stk_calibrate_options": CalibrateOptionsStruct,
    "stk_sampler_options": SamplerOptionsStruct,
    "stk_trace_info": TraceInfoStruct,
    "stk_trace_event": TraceEventStruct,
    "stk_trace_convert_options": TraceConvertOptionsStruct,
    "stk_replay_count": ReplayCount,
    "stk_replay_layer": ReplayLayerStruct,
    "stk_replay_tiers": ReplayTiers,
    "stk_replay_detail": ReplayDetailStruct,
    "stk_replay_options": ReplayOptionsStruct,
    "stk_replay_result": ReplayResultStruct,
    "stk_tune_options": TuneOptionsStruct,
    "stk_tune_result": TuneResultStruct,
    "stk_plan_options": PlanOptionsStruct,
    "stk_plan_info": PlanInfoStruct,
    "stk_pack_options": PackOptionsStruct,
    "stk_synth_options": SynthOptionsStruct,
}
