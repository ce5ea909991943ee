from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stoker

from .conftest import EMBER, TINY


def test_info(ember_model: stoker.Model) -> None:
    info = ember_model.info
    assert (info.arch, info.n_layer, info.n_expert, info.n_expert_used) == ("qwen3moe", 6, 32, 4)
    assert info.file_bytes == EMBER.stat().st_size
    assert "ember" in info.name


def test_metadata_and_tensors(ember_model: stoker.Model) -> None:
    meta = ember_model.metadata
    assert meta["general.architecture"].text == "qwen3moe"
    assert meta["qwen3moe.expert_count"].text == "32"
    tensors = {t.name: t for t in ember_model.tensors}
    assert tensors["token_embd.weight"].shape == (256, 4096)
    assert sum(t.bytes for t in tensors.values()) < EMBER.stat().st_size
    assert ember_model.owns_file(EMBER)
    assert not ember_model.owns_file(TINY)


@pytest.mark.parametrize("text", ["", "Once upon a time", "naïve — 😀 ﬁ", "zero\0byte", "x" * 5000])
def test_text_round_trip(ember_model: stoker.Model, text: str) -> None:
    ids = ember_model.tokenize(text, bos=False)
    assert ember_model.detokenize(ids) == text
    assert ember_model.detokenize(np.array(ids, np.int64)) == text
    assert b"".join(ember_model.token_bytes(i) for i in ids) == text.encode()


def test_bytes_that_are_no_text(ember_model: stoker.Model) -> None:
    ids = ember_model.tokenize(b"a\xff\xfe", bos=False)
    assert b"".join(ember_model.token_bytes(i) for i in ids) == b"a\xff\xfe"
    assert ember_model.detokenize(ids) == "a\ufffd\ufffd"


def test_decoder_never_cuts_a_character(ember_model: stoker.Model) -> None:
    text = "😀é😀"
    with stoker.Decoder(ember_model) as decoder:
        pieces = [decoder.put(i) for i in ember_model.tokenize(text, bos=False)]
        assert all("\ufffd" not in piece for piece in pieces)
        assert "".join(pieces) + decoder.flush() == text


def test_chat(ember_model: stoker.Model) -> None:
    text = ember_model.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüß dich"}])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert "Grüß dich" in text
    assert text.endswith("<|im_start|>assistant\n")
    with pytest.raises(stoker.InvalidArgumentError, match="zero byte"):
        ember_model.chat([{"role": "user", "content": "a\0b"}])


def test_a_model_without_a_tokenizer() -> None:
    with stoker.Model(TINY) as model:
        with pytest.raises(stoker.FormatError, match="merges"):
            model.tokenize("Hello")
        with pytest.raises(stoker.FormatError, match="merges"):
            model.chat([{"role": "user", "content": "Hello"}])


def test_errors(tmp_path: Path, ember_model: stoker.Model) -> None:
    with pytest.raises(stoker.ReadWriteError, match="nothing.gguf"):
        stoker.Model(tmp_path / "nothing.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises((stoker.FormatError, stoker.UnsupportedError), match="bad.gguf"):
        stoker.Model(tmp_path / "bad.gguf")
    with pytest.raises(OSError, match="nothing"):
        stoker.Model(str(tmp_path / "nothing"))
    with pytest.raises(TypeError):
        stoker.Model(3)  # type: ignore[arg-type]
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.Model("a\0b")
    with pytest.raises(TypeError):
        ember_model.tokenize(3)  # type: ignore[arg-type]
    with pytest.raises(stoker.InvalidArgumentError):
        ember_model.token_bytes(10**6)
    with pytest.raises(stoker.InvalidArgumentError):
        ember_model.token_bytes(10**12)
    with pytest.raises(TypeError):
        ember_model.detokenize("text")


@pytest.mark.parametrize(
    ("text", "size"),
    [(None, 0), (5, 5), ("0", 0), ("3K", 3072), ("8G", 8 << 30), ("1.5g", 3 << 29), ("2MiB", 2 << 20), (" 7 TB ", 7 << 40)],
)
def test_sizes(text: object, size: int) -> None:
    assert stoker.parse_bytes(text) == size  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "G", "-1", "1X", "1GG", -1, 2**64])
def test_bad_sizes(text: object) -> None:
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.parse_bytes(text)  # type: ignore[arg-type]
