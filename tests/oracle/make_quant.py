#!/usr/bin/env python3
"""Makes tests/data/quant.bin: random rows of each format and what the `gguf` package dequantizes them to.

File: "STKQ", u32 count; per case: u32 type, u32 n, u32 row bytes, the row, f32 out [n]. Little-endian. Then "SIZE", u32 count and per type of the
package: u32 type, u32 block, u32 block bytes.

    python3 tests/oracle/make_quant.py tests/data/quant.bin
"""
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

rng = np.random.default_rng(20240607)

# Offsets of the f16 fields of a block, which get chosen values: random bits would be infinite or not a number once in 32.
HALVES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
SCALES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x1400, 0x9800, 0x2E66, 0x3C00, 0xBC00, 0x5640, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00],
                  np.uint16)


def quantized(t, n_blocks):
    size = GGML_QUANT_SIZES[t][1]
    blocks = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    blocks[1] = 0xFF
    blocks[2] = 0x00
    blocks[3] = 0x80
    for at in HALVES[t]:
        d = SCALES[rng.permutation(n_blocks) % len(SCALES)]
        blocks[:, at:at + 2] = d.view(np.uint8).reshape(n_blocks, 2)
    return blocks.reshape(1, -1)


def floats(t):
    if t == T.F32:
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-38, 3.4e38]
        return np.concatenate([np.array(special, np.float32), rng.standard_normal(53).astype(np.float32)]).view(np.uint8).reshape(1, -1)
    special = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7F80, 0xFF80, 0x7FC0, 0x0080], np.uint16)
    return np.concatenate([special, rng.integers(0, 0x7C00, 47, dtype=np.uint16)]).view(np.uint8).reshape(1, -1)


cases = [(t, floats(t)) for t in (T.F32, T.F16, T.BF16)]
cases += [(t, quantized(t, 32 if GGML_QUANT_SIZES[t][0] == 32 else 16)) for t in HALVES]

with open(sys.argv[1], "wb") as f:
    f.write(b"STKQ" + struct.pack("<I", len(cases)))
    for t, row in cases:
        with np.errstate(all="ignore"):
            out = dequantize(row.view(np.float32) if t == T.F32 else row, t).astype(np.float32).ravel()
        f.write(struct.pack("<III", t, out.size, row.size) + row.tobytes() + out.tobytes())
    f.write(b"SIZE" + struct.pack("<I", len(GGML_QUANT_SIZES)))
    for t, (block, size) in GGML_QUANT_SIZES.items():
        f.write(struct.pack("<III", t, block, size))
