"""Text in and out of one sequence of an engine."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Callable, Optional, Union

import numpy as np

from ._native import lib
from .engine import Engine, Float32
from .errors import ContextFullError, InvalidArgumentError, StateError
from .model import Decoder, Ids, ids_array
from .sampler import Sampler, Sampling
from .units import as_int

Prompt = Union[str, bytes, Ids]


class Session:
    """
    One sequence of an engine: what has been read and written so far, `tokens`, and more of it. Several sessions of an engine that was
    opened with `n_seq` share its cache. A session holds nothing of its own: closing the engine ends it.
    """

    def __init__(self, engine: Engine, seq: int = 0) -> None:
        self.engine = engine
        self.seq = as_int(seq, "seq", 0, engine.n_seq - 1)
        if engine.length(self.seq):
            raise StateError(f"sequence {self.seq} holds {engine.length(self.seq)} positions; trim it first: engine.trim({self.seq}, 0)")
        self.tokens: list[int] = []  # computed
        self._ahead: Optional[int] = None  # drawn, and not computed yet

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"<stoker.Session of sequence {self.seq}, {len(self.tokens)} tokens>"

    def tokenize(self, text: Union[str, bytes], *, special: bool = False) -> list[int]:
        """The ids of a text as they would follow here: with what the model wants in front only at the start."""
        at_start = not self.tokens and self._ahead is None
        return self.engine.model.tokenize(text, bos=at_start, special=special)

    def _ids(self, prompt: Prompt, special: bool) -> list[int]:
        if isinstance(prompt, (str, bytes)):
            return self.tokenize(prompt, special=special)
        return list(ids_array(prompt))

    def prefill(self, prompt: Prompt, *, special: bool = False, all_logits: bool = False) -> Optional[Float32]:
        """
        Reads a prompt, in steps of n_batch tokens. `engine.logits()` are then those of its last token.

        :param prompt: text, or token ids.
        :param special: recognise the text of control tokens.
        :param all_logits: return the logits of every token, [n, n_vocab] float32 (steps are then of `n_logits` tokens at most).
        :raises ContextFullError: no room; nothing was read.
        """
        ids = self._ids(prompt, special)
        if self._ahead is not None:
            ids.insert(0, self._ahead)
        if not ids:
            raise InvalidArgumentError("the prompt is empty")
        if len(self.tokens) + len(ids) > self.engine.n_ctx:
            raise ContextFullError(
                f"{len(self.tokens)} positions and {len(ids)} more; the context holds {self.engine.n_ctx}: shorten it, or open the "
                "engine with a greater n_ctx"
            )
        self._ahead = None
        size = min(self.engine.n_batch, self.engine.n_logits) if all_logits else self.engine.n_batch
        rows = []
        for at in range(0, len(ids), size):
            chunk = ids[at : at + size]
            try:
                self.engine.step(chunk, seq=[self.seq] * len(chunk), logits="all" if all_logits else "last")
            finally:
                self._follow(chunk)
            if all_logits:
                rows += [self.engine.logits(i) for i in range(len(chunk))]
        return np.stack(rows) if all_logits else None

    def _follow(self, chunk: Sequence[int]) -> None:
        """Keeps `tokens` what the engine holds, whether its step succeeded or not."""
        if not self.engine.closed and self.engine.length(self.seq) == len(self.tokens) + len(chunk):
            self.tokens += chunk

    def trim(self, n_pos: int) -> None:
        """Forgets everything from position `n_pos` on."""
        self.engine.trim(self.seq, n_pos)
        del self.tokens[n_pos:]
        self._ahead = None

    def generate(
        self,
        prompt: Prompt = "",
        *,
        max_tokens: int = 256,
        sampling: Union[Sampling, Sampler] = Sampling(),
        stop: Union[str, Sequence[str]] = (),
        special: bool = False,
        on_token: Optional[Callable[[int, str], object]] = None,
    ) -> Generation:
        """
        Generates text after what is here and `prompt` (which may be empty after a `prefill`). Returns an iterator of pieces of text:

            for piece in session.generate("Once upon a time", max_tokens=100):
                print(piece, end="", flush=True)

        :param sampling: how tokens are drawn, or a `Sampler` whose state goes on.
        :param stop: texts that end generation; neither they nor what follows is returned.
        :param on_token: called with (id, text) for each token; returning False ends generation.
        """
        return Generation(self, prompt, max_tokens, sampling, stop, special, on_token)


class _Stops:
    """Text on its way out: whatever may be the beginning of a stop text is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.hit = False

    def put(self, text: str) -> str:
        held = self._held + text
        found = [at for at in (held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.hit = True
            self._held = ""
            return held[: min(found)]
        keep = max((n for stop in self._stops for n in range(1, len(stop)) if held.endswith(stop[:n])), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class Generation(Iterator[str]):
    """
    An iterator of pieces of text. While and after it runs: `text` so far, `tokens` drawn, and `finish_reason`, which is None until
    it is one of "end" (the model's own end), "stop", "length" (max_tokens), "context" (no room), "callback".
    """

    def __init__(
        self,
        session: Session,
        prompt: Prompt,
        max_tokens: int,
        sampling: Union[Sampling, Sampler],
        stop: Union[str, Sequence[str]],
        special: bool,
        on_token: Optional[Callable[[int, str], object]],
    ) -> None:
        stops = [stop] if isinstance(stop, str) or not isinstance(stop, Iterable) else list(stop)
        if any(not isinstance(text, str) or not text for text in stops):
            raise InvalidArgumentError("a stop text is a str that is not empty")
        self.session = session
        self.text = ""
        self.tokens: list[int] = []
        self.finish_reason: Optional[str] = None
        if not isinstance(sampling, (Sampling, Sampler)):
            raise TypeError(f"sampling is a stoker.Sampling or Sampler, not {type(sampling).__name__}")
        if on_token is not None and not callable(on_token):
            raise TypeError(f"on_token is a function of a token's id and text, not {type(on_token).__name__}")
        if not isinstance(prompt, (str, bytes)):
            prompt = list(ids_array(prompt))
        self._max_tokens = as_int(max_tokens, "max_tokens")
        self._on_token = on_token
        self._pieces: Generator[str, None, None] = self._run(prompt, sampling, _Stops(stops), special)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Ends it where it is."""
        self._pieces.close()

    def result(self) -> str:
        """Runs to the end; the whole text."""
        for _ in self:
            pass
        return self.text

    def _run(self, prompt: Prompt, sampling: Union[Sampling, Sampler], stops: _Stops, special: bool) -> Generator[str, None, None]:
        session, engine = self.session, self.session.engine
        with contextlib.ExitStack() as stack:
            sampler = sampling if isinstance(sampling, Sampler) else stack.enter_context(Sampler(engine.model, sampling))
            decoder = stack.enter_context(Decoder(engine.model))
            if len(prompt) or session._ahead is not None:
                session.prefill(prompt, special=special)
            elif not session.tokens:
                raise InvalidArgumentError("there is nothing to generate after: give a prompt")
            for token in session.tokens:
                sampler.accept(token)
            for piece in self._draw(sampler, decoder, stops):
                self.text += piece
                if piece:
                    yield piece
            rest = "" if stops.hit else stops.put(decoder.flush()) + stops.flush()
            if rest:
                self.text += rest
                yield rest

    def _draw(self, sampler: Sampler, decoder: Decoder, stops: _Stops) -> Iterator[str]:
        """Draws tokens, and computes each that another follows."""
        session, engine = self.session, self.session.engine
        while len(self.tokens) < self._max_tokens:
            token = self._sample(sampler)
            sampler.accept(token)
            if engine.model.is_end(token):
                self.finish_reason = "end"
                return
            self.tokens.append(token)
            session._ahead = token
            text = decoder.put(token)
            piece = stops.put(text)
            if stops.hit:
                self.finish_reason = "stop"
            elif self._on_token is not None and self._on_token(token, text) is False:
                self.finish_reason = "callback"
            elif len(self.tokens) == self._max_tokens:
                self.finish_reason = "length"
            elif len(session.tokens) == engine.n_ctx:
                self.finish_reason = "context"
            yield piece
            if self.finish_reason is not None:
                return
            session._ahead = None
            try:
                engine._step_one(token, session.seq)
            finally:
                session._follow((token,))
        self.finish_reason = self.finish_reason or "length"

    def _sample(self, sampler: Sampler) -> int:
        """Draws from the engine's own memory."""
        engine = self.session.engine
        with engine._use() as p:
            address = lib().stk_get_logits(p, engine._entry(-1))
            if not address:
                raise StateError("the engine's last step was not one of this session: prefill again")
            return sampler._sample_at(address)
