"""A model's files: what is in them, and its text."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Callable, Optional, TypeVar, Union

from . import _structs as s
from ._handle import Handle
from ._native import Callbacks, _text, check, lib
from .errors import InvalidArgumentError, StateError
from .units import as_int

_BOS, _SPECIAL = 1, 2
_D = TypeVar("_D")

PathLike = Union[str, "os.PathLike[str]"]
Ids = Union[Sequence[int], Any]  # a sequence of token ids, or a NumPy array of integers [n]


def plain(value: Any) -> Any:
    """A field of a C struct as Python has it."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def from_struct(cls: type[_D], struct: c.Structure) -> _D:
    """A dataclass of those fields of a struct that it names; NULL text is ""."""
    return cls(**{f.name: plain(getattr(struct, f.name)) if getattr(struct, f.name) is not None else "" for f in fields(cls)})  # type: ignore[arg-type]


def encode_path(path: PathLike) -> bytes:
    """A path as the library takes it."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"a path is a str or os.PathLike, not {type(path).__name__}")
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise InvalidArgumentError(f"a path with a zero byte: {path!r}")
    return raw


def ids_array(ids: Ids) -> Any:
    """Token ids as c_int32 [n]."""
    if isinstance(ids, (str, bytes)):
        raise TypeError("token ids are integers, not text: tokenize it first")
    if not isinstance(ids, Iterable):
        raise TypeError(f"token ids are a flat sequence of integers, not {ids!r}")
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"token ids are a flat sequence of integers; found {value!r}")
        if not -(2**31) <= value < 2**31:
            raise InvalidArgumentError(f"token id {value} does not fit 32 bits")
    return (c.c_int32 * len(values))(*values)


@dataclass(frozen=True)
class ModelInfo:
    """The shape of a model. Sizes are in bytes, of weights as they are stored."""

    arch: str
    name: str
    n_layer: int
    n_moe_layer: int
    n_expert: int
    n_expert_used: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_file: int
    n_param: int
    file_bytes: int
    expert_bytes: int
    dense_bytes: int
    expert_bytes_min: int
    expert_bytes_max: int
    token_bytes: int
    ram_bytes_min: int
    ram_bytes_all: int
    packed: int


@dataclass(frozen=True)
class ExpertClass:
    """Layers whose experts have the same types and shapes. Bytes are those of one expert."""

    n_layer: int
    bytes: int
    gate_bytes: int
    up_bytes: int
    down_bytes: int
    gate_type: str
    up_type: str
    down_type: str


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file. `shape[0]` is the contiguous dimension; `offset` and `bytes` are in file number `file`."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    type: int
    file: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class Metadata:
    """One value of the file's metadata, as text; arrays are cut after a few elements."""

    type: str
    text: str


class Model(Handle):
    """
    A GGUF model, opened for reading: the metadata alone, weights are read by `Engine`. Threads may share it.

    :param path: a GGUF file; of a split model any of its parts.
    :raises ReadWriteError, FormatError, UnsupportedError, OutOfMemoryError: what cannot be read, with file, offset and field.
    """

    _what = "model"
    _shared = True

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        out = c.c_void_p()
        check(lib().stk_model_open(c.byref(out), encode_path(path)))
        assert out.value is not None
        super().__init__(out.value)
        self._n_engine = 0
        info = s.ModelInfoStruct()
        with self._use() as p:
            check(lib().stk_model_get_info(p, c.byref(info)))
        self.info: ModelInfo = from_struct(ModelInfo, info)

    def _close_native(self, pointer: Any) -> None:
        lib().stk_model_close(pointer)

    def close(self) -> None:
        """Frees the model. Raises StateError while an engine of it is open."""
        if self._n_engine and not self.closed:
            raise StateError(f"{self._n_engine} engine(s) of this model are open: close them first")
        super().close()

    def __repr__(self) -> str:
        return f"<stoker.Model {self.path!r}{' closed' if self.closed else ''}>"

    @property
    def metadata(self) -> Mapping[str, Metadata]:
        """All metadata of the file by key."""
        found = {}
        key, kind, text = c.c_char_p(), c.c_char_p(), c.c_char_p()
        with self._use() as p:
            for i in range(lib().stk_model_n_meta(p)):
                check(lib().stk_model_get_meta(p, i, c.byref(key), c.byref(kind), c.byref(text)))
                found[_text(key.value)] = Metadata(_text(kind.value), _text(text.value))
        return found

    @property
    def tensors(self) -> list[TensorInfo]:
        """All tensors of the files, in their order."""
        return list(self._tensors())

    def _tensors(self) -> Iterator[TensorInfo]:
        t = s.TensorInfoStruct()
        with self._use() as p:
            for i in range(lib().stk_model_n_tensor(p)):
                check(lib().stk_model_get_tensor(p, i, c.byref(t)))
                shape = tuple(t.dim[: t.n_dim])
                yield TensorInfo(_text(t.name), shape, _text(t.type_name), t.type, t.file, t.offset, t.bytes)

    @property
    def expert_classes(self) -> list[ExpertClass]:
        """What kinds of experts there are."""
        found: list[ExpertClass] = []
        i = s.ExpertClassInfoStruct()
        with self._use() as p:
            for n in range(lib().stk_model_n_expert_class(p)):
                check(lib().stk_model_get_expert_class(p, n, c.byref(i)))
                found.append(from_struct(ExpertClass, i))
        return found

    def pack(self, path: PathLike, *, progress: Optional[Callable[[str, int, int], object]] = None) -> None:
        """
        Writes the model in a form whose experts are read without being rearranged, for Stoker alone; it is opened like any model. The
        file appears whole or not at all; a file of that name is replaced.

        :param progress: called with (what, bytes done, bytes in all); returning False cancels.
        :raises InvalidArgumentError: the model is packed, or `path` is a file of it.
        :raises NoSpaceError: names what is needed and what is free.
        """
        o, callbacks = s.PackOptionsStruct(), Callbacks()
        o.progress = callbacks.progress(progress)
        with self._use() as p:
            check(lib().stk_pack(p, encode_path(path), c.byref(o)), callbacks)

    def check_packed(self, *, progress: Optional[Callable[[str, int, int], object]] = None) -> None:
        """
        Reads all of a packed model and compares it with its checksums.

        :raises FormatError: names what is damaged.
        :raises InvalidArgumentError: the model is not packed.
        """
        o, callbacks = s.PackOptionsStruct(), Callbacks()
        o.progress = callbacks.progress(progress)
        with self._use() as p:
            check(lib().stk_pack_check(p, c.byref(o)), callbacks)

    def owns_file(self, path: PathLike) -> bool:
        """Whether `path` names one of the model's own files, by whatever name."""
        with self._use() as p:
            return bool(check(lib().stk_model_owns_file(p, encode_path(path))))

    def tokenize(self, text: Union[str, bytes], *, bos: bool = True, special: bool = False) -> list[int]:
        """
        The token ids of a text (bytes need not be valid UTF-8).

        :param bos: put in front what the model wants there; nothing, if it wants nothing or it is there already.
        :param special: recognise the text of control tokens.
        :raises UnsupportedError: no tokenizer for this model, or no token for a byte.
        """
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"a text is str or bytes, not {type(text).__name__}")
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        flags = (_BOS if bos else 0) | (_SPECIAL if special else 0)
        cap = len(raw) + 8
        with self._use() as p:
            while True:
                ids = (c.c_int32 * cap)()
                n = check(lib().stk_tokenize(p, raw, len(raw), flags, ids, cap))
                if n <= cap:
                    return list(ids[:n])
                cap = n

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token prints: possibly a part of a character; control tokens print nothing unless `special`."""
        out = c.c_void_p()
        with self._use() as p:
            n = check(lib().stk_token_bytes(p, as_int(token, "token", -(2**31), 2**31 - 1), special, c.byref(out)))
            return c.string_at(out.value, n) if n and out.value else b""

    def detokenize(self, tokens: Ids, *, special: bool = False) -> str:
        """The text of tokens; invalid UTF-8 becomes U+FFFD."""
        with Decoder(self, special=special) as decoder:
            return "".join([decoder.put(token) for token in ids_array(tokens)] + [decoder.flush()])

    def is_end(self, token: int) -> bool:
        """Whether a token ends generation."""
        with self._use() as p:
            return bool(lib().stk_token_is_end(p, as_int(token, "token", -(2**31), 2**31 - 1)))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """
        Formats messages, each `{"role": ..., "content": ...}`, as ChatML and opens the assistant's turn. Tokenize the result with
        `special=True`.

        :raises UnsupportedError: the model has no ChatML tokens.
        """
        array = (s.ChatMessageStruct * len(messages))()
        for i, message in enumerate(messages):
            role, text = message["role"].encode(), message["content"].encode()
            if b"\0" in role or b"\0" in text:
                raise InvalidArgumentError(f"message {i} has a zero byte")
            array[i] = s.ChatMessageStruct(role, text)
        with self._use() as p:
            need = check(lib().stk_chat_format(p, array, len(messages), None, 0))
            out = c.create_string_buffer(need + 1)
            check(lib().stk_chat_format(p, array, len(messages), out, need + 1))
        return out.raw[:need].decode("utf-8", "replace")


class Decoder(Handle):
    """Turns a stream of tokens into text without ever cutting a UTF-8 character."""

    _what = "decoder"

    def __init__(self, model: Model, *, special: bool = False) -> None:
        out = c.c_void_p()
        with model._use() as p:
            check(lib().stk_decoder_open(c.byref(out), p, special))
        assert out.value is not None
        super().__init__(out.value)
        self._model = model  # it reads the model's tokens
        self._out = c.c_void_p()

    def _close_native(self, pointer: Any) -> None:
        lib().stk_decoder_close(pointer)

    def put(self, token: int) -> str:
        """Adds a token; returns what can be printed by now."""
        number = as_int(token, "token", -(2**31), 2**31 - 1)
        with self._model._use(), self._use() as p:
            n = check(lib().stk_decoder_put(p, number, c.byref(self._out)))
            return c.string_at(self._out.value or 0, n).decode("utf-8", "replace") if n else ""

    def flush(self) -> str:
        """What is left, an incomplete character as U+FFFD; then the decoder is as at the start."""
        with self._model._use(), self._use() as p:
            n = check(lib().stk_decoder_flush(p, c.byref(self._out)))
            return c.string_at(self._out.value or 0, n).decode("utf-8", "replace") if n else ""
