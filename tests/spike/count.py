#!/usr/bin/env python3
"""Registers, spills and instructions of the hot loops: of twins.cu for some GPUs, and of the CPU's kernels as built.

    count.py                 needs nvcc, cuobjdump and nvdisasm in PATH; prints the GPU table
    count.py --kernels       the same of the GPU's kernels, cuda/*.cu, for sm_89
    count.py OBJECT...       the CPU table of object files, as build/CMakeFiles/stk_objects.dir/cpu/simd_avx512.c.o

A hot loop is the innermost one with the most products. In the GPU's table it is one block of 256 weights x 16 rows, x 8 tokens
in *_tile, other than for BF16, where it is what the compiler unrolled.
"""
import collections
import glob
import os
import re
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ARCHS = [75, 89, 120]
GPU_KINDS = {"IMMA": "mma", "IDP": "dp4a", "FFMA": "fma", "FMUL": "other float", "FADD": "other float", "I2F": "int to float",
             "I2FP": "int to float", "SHFL": "shuffle", "LDG": "load", "LDC": "constant"}
GPU_PRODUCT = ("IMMA", "IDP", "FFMA")
CPU_PRODUCT = ("vpdpbusd", "vpmaddubsw", "vfmadd")


def run(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def hot_loop(code, product):
    """code: [(address, opcode, jump target or None)]. The body of the innermost loop with the most products."""
    index = {address: i for i, (address, _, _) in enumerate(code)}
    loops = [(index[to], i) for i, (at, _, to) in enumerate(code) if to in index and index[to] < i]
    bodies = [code[a:b + 1] for a, b in loops if not any(a <= c and d < b or a < c and d <= b for c, d in loops)]
    return max(bodies, key=lambda body: sum(op.startswith(product) for _, op, _ in body), default=[])


def gpu_functions(cubin):
    usage = dict(re.findall(r"Function (\w+):\s+(REG:.*)", run("cuobjdump", "--dump-resource-usage", cubin)))
    for name, text in re.findall(r"Function : (\w+)(.*?)(?=Function :|\Z)", run("cuobjdump", "-sass", cubin), re.S):
        code = []
        for at, ins in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", text):
            words = re.sub(r"^@!?U?P\d+\s+", "", ins.strip()).split()
            jump = int(words[-1], 16) if words[0].startswith("BRA") and words[-1].startswith("0x") else None
            code.append((int(at, 16), words[0], jump))
        yield name, usage[name], hot_loop(code, GPU_PRODUCT)


TYPES = {"0": "F32", "1": "F16", "2": "Q4_0", "8": "Q8_0", "12": "Q4_K", "13": "Q5_K", "14": "Q6_K", "30": "BF16"}


def plain_name(name):
    """A mangled kernel's name and template arguments, as stk_product Q4_K 8."""
    m = re.match(r"_Z\d+(stk_[a-z_]+)(I(?:L.*?E)+E)?(?:Ev|v)?\d", name)
    if not m:
        return name
    arguments = re.findall(r"L(8stk_type|i|b)(\d+)E", m[2] or "")
    return " ".join([m[1]] + [TYPES[value] if kind == "8stk_type" else value for kind, value in arguments])


def gpu_table(sources, archs):
    columns = ["mma", "dp4a", "fma", "other float", "int to float", "shuffle", "load", "constant"]
    print("kernel,sm,registers,stack bytes,loop," + ",".join(columns))
    with tempfile.TemporaryDirectory() as tmp:
        for source in sources:
            for arch in archs:
                cubin = os.path.join(tmp, "twins.cubin")
                run("nvcc", "-std=c++17", "-O3", "-fmad=false", "-cubin", f"-arch=sm_{arch}", "-D_GNU_SOURCE", f"-I{TOP}", "-o", cubin, source)
                for name, usage, loop in sorted(gpu_functions(cubin)):
                    count = collections.Counter(GPU_KINDS.get(op.split(".")[0]) for _, op, _ in loop)
                    reg, stack = (re.search(key + r":(\d+)", usage)[1] for key in ("REG", "STACK"))
                    print(f"{plain_name(name)},{arch},{reg},{stack},{len(loop)}," + ",".join(str(count[c]) for c in columns), flush=True)


def cpu_functions(path):
    text = run("objdump", "-d", "--no-show-raw-insn", path)
    for name, body in re.findall(r"<(\w+)>:\n(.*?)(?=\n\n|\Z)", text, re.S):
        if not re.fullmatch(r"(Q\w+_[18]|B?F\d+_side_[18])", name):
            continue
        code = []
        for at, op, args in re.findall(r"^\s+([0-9a-f]+):\s+(?:\{vex\} )?(\S+) ?(.*)$", body, re.M):
            target = re.match(r"\s*([0-9a-f]+) <", args) if op.startswith("j") else None
            code.append((int(at, 16), op + " " + args, int(target[1], 16) if target else None))
        yield name, hot_loop(code, CPU_PRODUCT)


def cpu_table(path):
    print("kernel,loop,products,vector,stack references")
    for name, loop in sorted(cpu_functions(path)):
        ops = [op for _, op, _ in loop]
        print(f"{name},{len(ops)},{sum(op.startswith(CPU_PRODUCT) for op in ops)},"
              f"{sum(op[0] == 'v' and not op.startswith(('vmov', 'vpbroadcast', 'vbroadcast')) for op in ops)},"
              f"{sum('(%rsp' in op or '(%rbp' in op for op in ops)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--kernels"]:
        gpu_table(sorted(glob.glob(os.path.join(TOP, "cuda", "*.cu"))), [89])
    elif len(sys.argv) == 1:
        gpu_table([os.path.join(TOP, "tests", "spike", "twins.cu")], ARCHS)
    else:
        for object_file in sys.argv[1:]:
            print(f"# {object_file}")
            cpu_table(object_file)
