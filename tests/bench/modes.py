#!/usr/bin/env python3
"""Compares the modes of src/plan/plan.h on modelled machines: links of 2 to 32 GB/s, 25, 50 and 75 % of the experts in VRAM.

usage: modes.py BUILD [--quick] [--held TRACE.mrt8.xz] [--csv FILE]

Traces: the samples, whose prompts are one step; random routing; and with --held one of many sequences, the first half of which is
the profile of those modes that want one ("other sequences") and which is cut here into prompts of 256 tokens and decode.
Prints a table of all cases, then what must hold; exits with 1 where it does not. All times are predictions.
"""
from __future__ import annotations

import argparse
import lzma
import math
import random
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("qwen", "gemma", "gptoss")
MODES = ("hybrid", "static", "lru-upload", "kt", "hybrimoe")
PROFILED = ("fiddler", "kt-profiled")
LINKS = (2, 4, 8, 16, 32)
SHARES = (0.25, 0.5, 0.75)
PROMPT, DECODE = 256, 300
CPU_GB_S = {"4090": 63.9, "3060": 44.5}


@dataclass(frozen=True)
class Phase:
    tok_s: float
    n_event: int
    events_ns: float
    optimum_ns: float
    mean_ratio: float
    most_ratio: float


@dataclass(frozen=True)
class Case:
    trace: str
    table: str
    link: float
    share: float
    cpu: float
    adverse: bool


def write_csv(path: Path, n_expert: int, expert_bytes: int, seqs: list[list[list[list[int]]]], prompt: int) -> None:
    """seqs[sequence][token][layer] = experts; the first `prompt` tokens of each are one step."""
    k = len(seqs[0][0][0])
    with path.open("w") as out:
        out.write(f"# n_expert={n_expert} k={k} expert_bytes={expert_bytes}\nstep,seq,pos,phase,layer,experts\n")
        step = 0
        for s, tokens in enumerate(seqs):
            for first, end in [(0, prompt)] + [(t, t + 1) for t in range(prompt, len(tokens))]:
                for layer in range(len(tokens[0])):
                    for pos in range(first, end):
                        ids = " ".join(map(str, tokens[pos][layer]))
                        out.write(f"{step},{s},{pos},{'prefill' if end - first > 1 else 'decode'},{layer},{ids}\n")
                step += 1


def held(path: Path, folder: Path, quick: bool) -> tuple[Path, Path]:
    """A trace to measure on and one of other sequences."""
    data = lzma.decompress(path.read_bytes())
    n_layer, n_expert, k, n_seq = struct.unpack_from("<4I", data, 4)
    at, seqs = 20, []
    for _ in range(n_seq):
        n_tok = struct.unpack_from("<I", data, at)[0]
        at += 8
        tokens = []
        for t in range(min(n_tok, PROMPT + DECODE)):
            row = data[at + t * n_layer * k : at + (t + 1) * n_layer * k]
            tokens.append([[e for e in row[layer * k : (layer + 1) * k]] for layer in range(n_layer)])
        at += n_tok * n_layer * k
        seqs.append(tokens)
    half, n = n_seq // 2, 1 if quick else 4
    measured, other = folder / "held.csv", folder / "other.csv"
    write_csv(measured, n_expert, 4866048, seqs[half : half + n], PROMPT)
    write_csv(other, n_expert, 4866048, seqs[:half], PROMPT)
    return measured, other


def random_trace(path: Path) -> None:
    draw = random.Random(1)
    tokens = [[sorted(draw.sample(range(64), 6)) for _ in range(24)] for _ in range(28 + 160)]
    write_csv(path, 64, 3000000, [tokens], 28)


def replay(tool: Path, trace: Path, profile: Path | None, case: Case, mode: str) -> dict[str, Phase]:
    command = [tool, trace, profile or "-", case.table, mode, str(case.share), str(case.link), str(case.cpu)]
    text = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    out = {}
    for line in text.splitlines():
        name, *rest = line.split()
        v = list(map(float, rest))
        if name == "floor":
            out[name] = Phase(v[0] * 1e9 / v[1], 0, v[1], v[1], 1, 1)
        elif v[1]:
            out[name] = Phase(v[0] * 1e9 / v[1], int(v[5]), v[3], v[4], v[7], v[8])
    return out


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


class Claims:
    """What must hold, and by how much it does."""

    def __init__(self) -> None:
        self.failed = False

    def least(self, what: str, value: float, bound: float) -> None:
        good = value >= bound
        self.failed |= not good
        print(f"{'ok    ' if good else 'FAILED'} {what}: {value:.3f}, at least {bound}")

    def most(self, what: str, value: float, bound: float) -> None:
        good = value <= bound
        self.failed |= not good
        print(f"{'ok    ' if good else 'FAILED'} {what}: {value:.3f}, at most {bound}")


def cases(traces: list[str], quick: bool) -> list[Case]:
    out = []
    for trace in traces:
        adverse = trace == "random"
        for table in ("4090",) if quick else tuple(CPU_GB_S):
            for link in (2, 16) if quick else LINKS:
                for share in (0.5,) if quick else SHARES:
                    out.append(Case(trace, table, link, share, 1, adverse))
                    if not quick or trace == "qwen":
                        out.append(Case(trace, table, link, share, 4, True))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few cases, for a test")
    parser.add_argument("--held", type=Path, help="a trace of many sequences, mrt8")
    parser.add_argument("--csv", type=Path, help="where the table goes as CSV, too")
    args = parser.parse_args()
    tool = args.build.resolve() / "tests/mode_replay"
    claims, rows = Claims(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths: dict[str, tuple[Path, Path | None]] = {t: (ROOT / f"traces/samples/{t}.route.csv.zst", None) for t in SAMPLES}
        random_trace(folder / "random.csv")
        paths["random"] = (folder / "random.csv", None)
        if args.held:
            paths["held"] = held(args.held, folder, args.quick)
        worst, sums = {"decode": math.inf, "prefill": math.inf}, {"decode": [0.0, 0.0], "prefill": [0.0, 0.0]}
        worst_adverse = math.inf
        most_mean, most_one, against_kt, against_profiled, prefill_kt = 0.0, 0.0, [], [], []
        floor_kt, of_floor = [], []
        where: dict[str, Case] = {}
        print("| trace | table | link GB/s | in VRAM | CPU x | phase | " + " | ".join(MODES + PROFILED) + " | floor | of optimum |")
        print("|---" * (8 + len(MODES + PROFILED)) + "|")
        for case in cases(list(paths), args.quick):
            trace, profile = paths[case.trace]
            modes = MODES + (PROFILED if profile else ())
            # What other sequences left behind warms a cache, too: Stoker saves its residency.
            got = {m: replay(tool, trace, profile if m in (*PROFILED, "hybrid") else None, case, m) for m in modes}
            for phase in ("prefill", "decode"):
                speeds = {m: got[m][phase].tok_s for m in modes if phase in got[m]}
                hybrid = got["hybrid"][phase]
                of_optimum = hybrid.events_ns / hybrid.optimum_ns
                cells = [f"{speeds[m]:.1f}" if m in speeds else "" for m in MODES + PROFILED]
                floor = got["hybrid"]["floor"].tok_s if phase == "decode" else math.nan
                cells.append(f"{floor:.1f}" if phase == "decode" else "")
                row = [case.trace, case.table, f"{case.link:g}", f"{case.share:.0%}", f"{case.cpu:g}", phase, *cells, f"{of_optimum:.3f}"]
                rows.append(row)
                print("| " + " | ".join(row) + " |", flush=True)
                ratio = hybrid.tok_s / max(v for m, v in speeds.items() if m != "hybrid")
                if case.adverse:
                    worst_adverse = min(worst_adverse, ratio)
                if ratio < worst[phase]:
                    worst[phase], where[phase] = ratio, case
                sums[phase][0] += hybrid.events_ns
                sums[phase][1] += hybrid.optimum_ns
                if phase == "decode":
                    most_mean, most_one = max(most_mean, hybrid.mean_ratio), max(most_one, hybrid.most_ratio)
                if not case.adverse and case.link * 4 >= CPU_GB_S[case.table]:
                    if phase == "decode":
                        against_kt.append(hybrid.tok_s / speeds["kt"])
                        floor_kt.append(floor / speeds["kt"])
                        of_floor.append(hybrid.tok_s / floor)
                        if "kt-profiled" in speeds:
                            against_profiled.append(hybrid.tok_s / speeds["kt-profiled"])
                    else:
                        prefill_kt.append(hybrid.tok_s / speeds["kt"])
    if args.csv:
        header = ["trace", "table", "link", "vram", "cpu", "phase", *MODES, *PROFILED, "floor", "of_optimum"]
        args.csv.write_text("\n".join(",".join(r) for r in [header, *rows]) + "\n")
    for phase, (events, optimum) in sums.items():
        claims.most(f"{phase}: events, of the sum of their optima", events / optimum, 1.05)
        claims.least(f"{phase}: hybrid, of the best other mode, worst case ({where[phase]})", worst[phase], 0.98)
    claims.most("decode: mean over events of the plan, of the optimum, worst case", most_mean, 1.03)
    claims.most("decode: one event, of the optimum, worst", most_one, 1.15)
    claims.least("adverse cases: hybrid, of the best other mode, worst case", worst_adverse, 0.98)
    claims.least("decode: hybrid, of kt", geometric_mean(against_kt), 1.6)
    if against_profiled:
        claims.least("decode: hybrid, of kt-profiled", geometric_mean(against_profiled), 1.1)
    print(f"decode: the floor (plan_floor.h), of kt: {geometric_mean(floor_kt):.3f}; hybrid, of the floor: {geometric_mean(of_floor):.3f}")
    claims.least("prefill: hybrid, of kt", geometric_mean(prefill_kt), 1.33)
    return int(claims.failed)


if __name__ == "__main__":
    sys.exit(main())
