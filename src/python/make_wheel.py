#!/usr/bin/env python3
"""
Makes the wheel of the package with a library inside, and beside it those that it needs and that are named: the build's target `wheel`.

usage: make_wheel.py LIBSTOKER_SO OUT_DIR [LIBRARY...]

The wheel is for every CPython from 3.9 on, since ctypes needs no compiled module; its tag says which C library it needs: the newest
symbol version that the library inside refers to (PEP 600). A library that needs any other library is refused. The same input gives
the same bytes. Python's standard library (3.11 or later) and binutils.
"""

import base64
import ctypes
import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Linked into the library: their licences ask to come along.
BUNDLED = ("liburing-dev", "libzstd-dev", "liblzma-dev", "libpcre2-dev", "libcjson-dev")
NEEDED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}


def headers_of(library: Path) -> str:
    return subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout


def glibc_of(libraries: list[Path], beside: set[str]) -> str:
    """The newest version of the C library that they refer to, "2_34"."""
    versions = set()
    for library in libraries:
        said = headers_of(library)
        if more := set(re.findall(r"NEEDED +(\S+)", said)) - NEEDED - beside:
            sys.exit(f"make_wheel: {library} needs {', '.join(sorted(more))}, which a wheel cannot rely on: link it statically")
        versions |= {tuple(map(int, v.split("."))) for v in re.findall(r"\bGLIBC_(\d+(?:\.\d+)+)", said)}
    return "_".join(map(str, max(versions)[:2]))


def version_of(library: Path) -> str:
    loaded = ctypes.CDLL(str(library))
    loaded.stk_version.restype = ctypes.c_char_p
    return loaded.stk_version().decode()


def licence_of(package: str) -> bytes:
    path = Path("/usr/share/doc") / package / "copyright"
    if not path.is_file():
        sys.exit(f"make_wheel: {path} is missing, and the wheel has to bring the licence of what it contains: build it on Debian")
    return path.read_bytes()


def metadata(project: dict) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}", f"Summary: {project['description']}"]
    lines += [f"License: {project['license']['text']}", f"Requires-Python: {project['requires-python']}"]
    lines += [f"Classifier: {c}" for c in project["classifiers"]]
    lines += [f"Requires-Dist: {d}" for d in project["dependencies"]]
    for extra, needs in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}"] + [f"Requires-Dist: {d}; extra == '{extra}'" for d in needs]
    return "\n".join(lines) + "\nDescription-Content-Type: text/markdown\n\n" + (HERE / project["readme"]).read_text()


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    library, out = Path(sys.argv[1]), Path(sys.argv[2])
    beside = {re.search(r"SONAME +(\S+)", headers_of(path))[1]: path for path in map(Path, sys.argv[3:])}
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    if version_of(library) != project["version"]:
        sys.exit(f"make_wheel: {library} is version {version_of(library)}, the package {project['version']}")
    tag = f"py3-none-manylinux_{glibc_of([library, *beside.values()], set(beside))}_x86_64"
    stem = f"{project['name']}-{project['version']}"
    files = {f"stoker/{f.name}": f.read_bytes() for f in sorted((HERE / "stoker").iterdir()) if f.suffix == ".py" or f.name == "py.typed"}
    files["stoker/lib/libstoker.so"] = library.read_bytes()
    files |= {f"stoker/lib/{name}": path.read_bytes() for name, path in beside.items()}
    files[f"{stem}.dist-info/METADATA"] = metadata(project).encode()
    files[f"{stem}.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: stoker\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{stem}.dist-info/LICENSE"] = (HERE.parents[1] / "LICENSE").read_bytes()
    for package in BUNDLED:
        files[f"{stem}.dist-info/licenses/{package.removesuffix('-dev')}"] = licence_of(package)
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{stem}.dist-info/RECORD"] = (record + f"{stem}.dist-info/RECORD,,\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{project['name']}-*.whl"):
        old.unlink()
    wheel = out / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o755 if ".so" in name else 0o644) << 16
            z.writestr(info, data)
    print(wheel)


main()
