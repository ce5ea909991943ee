"""The binding is stoker.h: every function, every struct field, every number."""

from __future__ import annotations

import ctypes as c
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker import _native, _structs, errors
from stoker.policy import NO_EXPERT, Why

HEADER = Path(__file__).resolve().parents[2] / "stoker.h"
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
SCALARS: dict[str, Any] = {
    "int": c.c_int,
    "uint8_t": c.c_uint8,
    "uint16_t": c.c_uint16,
    "int32_t": c.c_int32,
    "uint32_t": c.c_uint32,
    "int64_t": c.c_int64,
    "uint64_t": c.c_uint64,
    "size_t": c.c_size_t,
    "float": c.c_float,
    "double": c.c_double,
    "char": c.c_char,
    "void": None,
}
FUNCTION_TYPES = {
    "stk_log_fn": _structs.LogFn,
    "stk_progress_fn": _structs.ProgressFn,
    "stk_finding_fn": _structs.FindingFn,
}


def allowed(declared: str) -> tuple[Any, ...]:
    """The ctypes that may stand for a C type."""
    declared = re.sub(r"\b(const|struct|enum)\b", "", declared)
    base, stars = re.sub(r"[\s*]", "", declared), declared.count("*")
    if base in FUNCTION_TYPES and not stars:
        return (FUNCTION_TYPES[base],)
    if not stars:
        return (SCALARS[base],)
    if base == "char":
        return (c.c_char_p, c.c_void_p) if stars == 1 else (c.POINTER(c.c_char_p), c.POINTER(c.c_void_p))
    if base in _structs.STRUCTS:
        return (c.POINTER(_structs.STRUCTS[base]),) if stars == 1 else (c.POINTER(c.c_void_p),)
    if base in SCALARS and base != "void":
        return (c.c_void_p, c.POINTER(SCALARS[base])) if stars == 1 else (c.POINTER(c.c_void_p),)
    return (c.c_void_p,) if stars == 1 else (c.POINTER(c.c_void_p),)  # opaque


def functions() -> dict[str, tuple[str, list[str]]]:
    """name: (result type, argument types)"""
    found = {}
    for result, name, arguments in re.findall(r"^STK_API ([\w\s]+?[\s*]+)(stk_\w+)\(([^)]*)\);", TEXT, re.M):
        kinds = [re.sub(r"\w+$", "", one.strip()) for one in arguments.split(",")] if arguments.strip() != "void" else []
        found[name] = (result.strip(), [kind.strip() for kind in kinds])
    return found


def struct_fields(name: str) -> list[tuple[str, str]]:
    """(type, name) of each field; function pointers have the type "fn"."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\n\}} {name};", TEXT, re.S)
    assert body, name
    fields = []
    for line in re.split(r";", body[1]):
        line = " ".join(line.split())
        if not line:
            continue
        if fn := re.match(r".*\(\*(\w+)\)\(", line):
            fields.append(("fn", fn[1]))
        else:
            one = re.match(r"(.*?[\s*])([\w, ]+)(\[\d+\])?$", line)
            assert one, line
            fields += [(one[1].strip() + (one[3] or ""), name.strip()) for name in one[2].split(",")]
    return fields


def test_every_function_is_bound() -> None:
    assert len(functions()) >= 45
    assert set(functions()) == set(_native.SIGNATURES)


@pytest.mark.parametrize("name", sorted(functions()))
def test_signature(name: str) -> None:
    result, arguments = functions()[name]
    bound_result, bound = _native.SIGNATURES[name]
    assert bound_result in allowed(result), f"{name} returns {result}"
    assert len(bound) == len(arguments), f"{name} takes {arguments}"
    for i, (declared, kind) in enumerate(zip(arguments, bound)):
        assert kind in allowed(declared), f"{name}, argument {i}: {declared}"


def test_every_struct_is_there() -> None:
    declared = set(re.findall(r"^typedef struct (\w+) \{", TEXT, re.M))
    assert declared == set(_structs.STRUCTS)


@pytest.mark.parametrize("name", sorted(_structs.STRUCTS))
def test_struct_fields(name: str) -> None:
    struct = _structs.STRUCTS[name]
    declared = struct_fields(name)
    assert [field for _, field in declared] == _structs.field_names(struct)
    kinds = dict(field[:2] for field in struct._fields_)  # type: ignore[misc]
    for kind, field in declared:
        bound = kinds[field]
        if kind == "fn":
            assert issubclass(bound, c._CFuncPtr), field  # type: ignore[attr-defined]
        elif array := re.match(r"(\w+)\[(\d+)\]$", kind):
            assert (bound._type_, bound._length_) == (SCALARS.get(array[1]) or _structs.STRUCTS[array[1]], int(array[2])), field
        elif kind in _structs.STRUCTS:
            assert bound is _structs.STRUCTS[kind], field
        else:
            assert bound in allowed(kind), f"{field}: {kind}"


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler is here to ask for the layout")
def test_layout_as_the_compiler_has_it(tmp_path: Path) -> None:
    lines = []
    for name, struct in _structs.STRUCTS.items():
        lines.append(f'printf("{name} %zu", sizeof({name}));')
        lines += [f'printf(" %zu", offsetof({name}, {field}));' for field in _structs.field_names(struct)]
        lines.append('puts("");')
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{chr(10).join(lines)}\nreturn 0;\n}}\n')
    subprocess.run(["cc", str(source), "-o", str(tmp_path / "layout")], check=True)
    out = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        name, *numbers = line.split()
        struct = _structs.STRUCTS[name]
        assert [c.sizeof(struct)] + [getattr(struct, field).offset for field in _structs.field_names(struct)] == [
            int(x) for x in numbers
        ], name


def constants(prefix: str) -> dict[str, int]:
    return {name: int(value, 0) for name, value in re.findall(rf"\b({prefix}\w*)\s*=?\s+(-?\d+)\b", TEXT)}


def test_error_codes() -> None:
    codes = constants("STK_E")
    assert len(codes) == 11
    assert set(codes.values()) == set(errors.BY_CODE)
    for code, family in errors.BY_CODE.items():
        assert family.code == code
        assert str(family("why", code)) == "why"
        assert isinstance(errors.error_of(code, "x"), family)


def test_other_numbers() -> None:
    assert constants("STK_ABI_VERSION") == {"STK_ABI_VERSION": _native.ABI_VERSION}
    names = re.search(r"enum stk_why \{(.*?)\}", TEXT)
    assert names
    assert [name.strip() for name in names[1].split(",")] == [f"STK_WHY_{why.name}" for why in Why]
    assert NO_EXPERT == 65535
