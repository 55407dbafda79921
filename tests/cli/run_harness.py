"""Small C programs and libraries for the tests of ``siwarp run``."""

from __future__ import annotations

import subprocess
from pathlib import Path

#: A program that prints the device names, one per line; compiled without rdma-core's headers.
DEVICE_LIST_SOURCE = """
extern void *ibv_get_device_list(int *);
extern const char *ibv_get_device_name(void *);
extern int printf(const char *, ...);
int show(void)
{
    int n = 0;
    void **list = ibv_get_device_list(&n);

    for (int i = 0; i < n; i++)
        printf("%s\\n", ibv_get_device_name(list[i]));
    return list ? 0 : 1;
}
"""

#: A libibverbs that is loaded before siwarp's libibverbs, with one device whose name is unknown to
#: siwarp.
OTHER_LIBIBVERBS_SOURCE = """
static const char name[] = "others";
static const void *one = name;
const void **ibv_get_device_list(int *n) { *n = 1; return &one; }
const char *ibv_get_device_name(const void *device) { return device; }
"""

VERSION_SCRIPT = "IBVERBS_1.0 { local: *; };\nIBVERBS_1.1 { global: ibv_*; } IBVERBS_1.0;\n"


def compile_program(folder: Path, name: str, source: str, *flags: str) -> Path:
    """Compile a program or, with -shared among the flags, a library."""
    code = folder / f"{name}.c"
    code.write_text(source)
    out = folder / name
    subprocess.run(
        ["cc", "-w", "-o", str(out), str(code), *flags], check=True, capture_output=True, text=True
    )
    return out


def compile_bundled_libibverbs(folder: Path) -> Path:
    """Return a library with libibverbs symbols under the name that auditwheel gives to bundled
    copies.
    """
    script = folder / "versions.map"
    script.write_text(VERSION_SCRIPT)
    name = "libibverbs-1de1263b.so.1"
    return compile_program(
        folder,
        name,
        OTHER_LIBIBVERBS_SOURCE,
        *("-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script={script}"),
    )
