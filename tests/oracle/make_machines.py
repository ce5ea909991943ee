#!/usr/bin/env python3
"""Writes src/machine/known/*.json: cost tables of known machines, in the form of src/plan/cost_file.h, from published figures.

usage: make_machines.py [FOLDER]

Nothing here was measured by us. Each table says under "sources" where each figure comes from: read in a public thread or
table, or computed from those; `#N` is an issue or pull request of ggml-org/llama.cpp, `repo#N` of another repository.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

POINTS = [1 << i for i in range(10)]
# Bytes of a weight in the formats that have a kernel.
FORMATS = {"F32": 4.0, "F16": 2.0, "BF16": 2.0, "Q8_0": 34 / 32, "Q4_0": 18 / 32, "Q4_K": 144 / 256, "Q5_K": 176 / 256, "Q6_K": 210 / 256}
# Operations of a token of LLaMA-3.1-8B, embedding and output aside.
LLAMA_8B_OPS = 14e9


def ns_per_byte(bytes_per_s: float, ops_per_s: float, bytes_per_weight: float) -> list[float]:
    """By tokens: the longer of reading a byte of weights and of multiplying what it holds with each token."""
    return [float(f"{max(1e9 / bytes_per_s, 2e9 * n / (bytes_per_weight * ops_per_s)):.5g}") for n in POINTS]


def cpu(read: float, tok_s: dict[str, float], share: float) -> dict[str, Any]:
    """Experts on the CPU: memory bandwidth for one token, published prompt speeds of LLaMA-3.1-8B for many."""
    out = {}
    for name, size in FORMATS.items():
        out[name] = {
            "expert_ns_per_byte": ns_per_byte(read, share * LLAMA_8B_OPS * tok_s[name], size),
            "arrive_ns_per_byte": round(3e9 / read, 5),
        }
    return out


def gpu(read: float, ops: float) -> dict[str, Any]:
    return {name: {"expert_ns_per_byte": ns_per_byte(read, ops, size)} for name, size in FORMATS.items()}


ZEN4_TOK_S = {"F32": 130, "F16": 263, "BF16": 263, "Q8_0": 269, "Q4_0": 278, "Q4_K": 259, "Q5_K": 248, "Q6_K": 243}
ZEN3_TOK_S = {"F32": 120, "F16": 120, "BF16": 120, "Q8_0": 234, "Q4_0": 251, "Q4_K": 283, "Q5_K": 269, "Q6_K": 264}
CONTENTION = 136 / 119.5

COMMON_SOURCES = {
    "limits.float_ops_per_s": "computed: half the 8-bit rate; no figure was found",
    "limits.run_ns, limits.phase_ns": "assumed: as this project's thread pool on two cores of a Xeon; not measured on this machine",
    "drive.latency_ns": "computed: 64 KiB at depth 1 in 134 us less 17 us of transfer, a Gen4 drive without DRAM (0xBakeer#2)",
    "drive.bytes_per_s_computing": "assumed equal to bytes_per_s",
    "drive.compute_slowdown": "computed: what the drive writes, of the memory bandwidth",
    "formats.arrive_ns_per_byte": "computed: packing reads each byte, and writes it to a line that is read first: 3 bytes of memory traffic",
}
GPU_SOURCES = {
    "gpu.launch_ns": "computed: two launches at 3 us in a filled stream (RTX 3080, velox#6096)",
    "gpu.return_ns": "computed: 10 us fixed part of a pinned copy (imp#1409) and 1.1 us for a flag to be seen (gdrcopy#264)",
    "gpu.link_latency_ns": "fixed part of a pinned copy of 864 KiB (imp#1409)",
    "gpu.link_bytes_per_s_computing, gpu.cpu_slowdown": "computed: CPU and copies together reach 119.5 of 110 + 26 GB/s (EPYC Rome, FreeToken); both slow "
    "down alike",
    "gpu.dense_layer_ns": "computed: ten kernels of a graph at 2 us, and 6 us to read the router's ids (CUDA.jl#896: 4.7 to 7.1)",
}


def machine(name: str, read: float, drive: float, tok_s: dict[str, float], share: float, threads: int, isa: str) -> dict[str, Any]:
    int8 = share * LLAMA_8B_OPS * tok_s["Q8_0"]
    return {
        "stoker_cost": 1,
        "machine": name,
        "cpu": isa,
        "threads": threads,
        "limits": {
            "read_bytes_per_s": read,
            "int8_ops_per_s": int8,
            "float_ops_per_s": int8 / 2,
            "run_ns": 5000,
            "phase_ns": 1000,
        },
        "drive": {
            "io": "uring",
            "bytes_per_s": drive,
            "bytes_per_s_computing": drive,
            "compute_slowdown": round(1 + drive / read, 3),
            "latency_ns": 117000,
        },
        "formats": cpu(read, tok_s, share),
    }


def add_gpu(table: dict[str, Any], name: str, vram: float, read: float, int8: float, link: float) -> None:
    table["gpu"] = {
        "name": name,
        "vram_bytes": vram,
        "launch_ns": 6000,
        "return_ns": 11000,
        "link_bytes_per_s": link,
        "link_bytes_per_s_computing": round(link / CONTENTION, -7),
        "link_latency_ns": 10000,
        "cpu_slowdown": round(CONTENTION, 3),
        "dense_layer_ns": 26000,
        "dense_ns_per_byte": ns_per_byte(0.75 * read, 0.23 * int8, FORMATS["Q4_K"]),
        "formats": gpu(0.4 * read, 0.09 * int8),
    }


def desktop_4090() -> dict[str, Any]:
    t = machine("Ryzen 9 7950X, DDR5, RTX 4090", 63.9e9, 6.56e9, ZEN4_TOK_S, 1, 16, "avx512")
    add_gpu(t, "NVIDIA GeForce RTX 4090", 24 * 2.0**30, 1008e9, 661e12, 25e9)
    t["sources"] = {
        "limits.read_bytes_per_s": "7950X: Q6_K and BF16 decode saturate at 63.9 GB/s (ik_llama.cpp#130, #142)",
        "limits.int8_ops_per_s, formats": "one token: the memory bandwidth; many: prompts of 512 tokens of LLaMA-3.1-8B on a 7950X, 14 G operations a token "
        "(ik_llama.cpp#119, #120, #129, #130, #132, #142); F32 and F16 from BF16",
        "drive.bytes_per_s": "19 MB reads, 8 at once, O_DIRECT, Gen4 drive (colibri#594)",
        "gpu.formats": "computed: 1,008 GB/s (specification) x 0.40 (experts reach 0.33 to 0.46 on a 4060 Ti, #25578, and 0.21 to 0.41 on a 5090, imp#642); many "
        "tokens: 661 TOPS x 0.09 (35B-A3B at 10,026 tok/s, #22298)",
        "gpu.dense_ns_per_byte": "computed: 1,008 GB/s x 0.75 (ninfer-3090#36: well tuned 0.75 to 0.85); many tokens: 661 TOPS x 0.23 (8B at 9.3k tok/s, #8062)",
        "gpu.link_bytes_per_s": "23.9 to 26.4 GB/s, PCIe 4.0 x16, pinned (nvbandwidth#15)",
        **GPU_SOURCES,
        **COMMON_SOURCES,
    }
    return t


def desktop_3060() -> dict[str, Any]:
    t = machine("Ryzen 5 5600, DDR4-3200, RTX 3060 12G", 44.5e9, 3.45e9, ZEN3_TOK_S, 6 / 32, 6, "avx2")
    add_gpu(t, "NVIDIA GeForce RTX 3060", 12 * 2.0**30, 360e9, 102e12, 24e9)
    t["sources"] = {
        "limits.read_bytes_per_s": "DDR4-3200, two channels: 43 to 46 GB/s (AIDA64, Guru3D)",
        "limits.int8_ops_per_s, formats": "one token: the memory bandwidth; many: computed: 6 of 32 cores of a 5975WX, prompts of 512 tokens of LLaMA-3.1-8B, "
        "14 G operations a token (ik_llama.cpp#119, #120, #129, #130, #132); floats at half of Q8_0",
        "drive.bytes_per_s": "970 EVO Plus, PCIe 3.0, 1 MiB sequential, depth 32 (treeru)",
        "gpu.formats": "computed: 360 GB/s (specification) x 0.40 and 102 TOPS x 0.09, shares as of the 4090's table",
        "gpu.dense_ns_per_byte": "computed: 360 GB/s x 0.75 and 102 TOPS x 0.23, shares as of the 4090's table",
        "gpu.link_bytes_per_s": "24 GB/s, PCIe 4.0 x16, pinned (exllamav3#392)",
        **GPU_SOURCES,
        **COMMON_SOURCES,
    }
    return t


def desktop_ddr5() -> dict[str, Any]:
    t = machine("Ryzen 9 7950X, DDR5", 63.9e9, 6.19e9, ZEN4_TOK_S, 1, 16, "avx512")
    t["sources"] = {
        "limits.read_bytes_per_s": "7950X: Q6_K and BF16 decode saturate at 63.9 GB/s (ik_llama.cpp#130, #142)",
        "limits.int8_ops_per_s, formats": "one token: the memory bandwidth; many: prompts of 512 tokens of LLaMA-3.1-8B on a 7950X, 14 G operations a token "
        "(ik_llama.cpp#119, #120, #129, #130, #132, #142); F32 and F16 from BF16",
        "drive.bytes_per_s": "PM9A1, PCIe 4.0, 1 MiB sequential, depth 32 (treeru)",
        **COMMON_SOURCES,
    }
    return t


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "src/machine/known")
    for name, table in {"4090": desktop_4090(), "3060": desktop_3060(), "ddr5": desktop_ddr5()}.items():
        text = json.dumps(table, indent=1)
        # Lists of numbers on one line.
        out, inside = [], False
        for line in text.split("\n"):
            if inside:
                out[-1] += line.strip() + (" " if line.strip().endswith(",") and line.strip() != "]," else "")
                inside = line.strip() not in ("]", "],")
            else:
                out.append(line)
                inside = line.endswith("[")
        (folder / f"{name}.json").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
