"""The C headers and libraries of this installation, and flags to compile C programs with them."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

LIBRARY = "libsiwarp.so.0"
VERBS = "libibverbs.so.1"
RDMACM = "librdmacm.so.1"


def include_dir() -> Path:
    """Return the folder to give to the compiler's ``-I``.

    It is ``siwarp/include``, or the system's if a package of the distribution has the headers.

    Raises:
        FileNotFoundError: the installation has no headers.

    """
    beside = Path(__file__).resolve().parent
    for found in (beside / "include", Path(sys.prefix, "include")):
        if (found / "siwarp" / "siw.h").is_file():
            return found
    raise FileNotFoundError(
        f"no siwarp/siw.h in {beside} or {sys.prefix}/include: as root, type: "
        "apt-get install libsiwarp-dev"
    )


def _c_module_folder() -> Path:
    """Return the folder of the C module, which is located, but not loaded: that needs cffi."""
    spec = importlib.util.find_spec("siwarp._siwarp")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).resolve().parent


def library_path() -> Path:
    """Return the shared library that this installation's Python uses.

    In an installed package it is ``siwarp/lib/libsiwarp.so.0``; in an editable installation the
    library is beside the C module in the build folder.

    Raises:
        FileNotFoundError: the installation has no such library.

    """
    beside = _c_module_folder()
    for found in (beside / "lib" / LIBRARY, beside / LIBRARY):
        if found.is_file():
            return found
    raise FileNotFoundError(f"no {LIBRARY} in {beside}: install siwarp again")


def rdma_core_abi_dir() -> Path:
    """Return the folder of ``libibverbs.so.1``, for the ``LD_LIBRARY_PATH`` of an RDMA program.

    In an installed package it is ``siwarp/lib/abi``; in an editable installation ``siwarp/abi`` in
    the build folder. The library uses the same ``libsiwarp.so.0`` as this installation's Python.

    Raises:
        FileNotFoundError: the installation was built without that library (``-Dabi=disabled``).

    """
    beside = _c_module_folder()
    for found in (beside / "lib" / "abi", beside / "siwarp" / "abi"):
        if (found / VERBS).is_file():
            return found
    raise FileNotFoundError(f"no {VERBS} in {beside}: built with -Dabi=disabled?")


def compiler_flags() -> str:
    """Return the compiler flags for a C program, quoted for a shell."""
    return shlex.quote(f"-I{include_dir()}")


def linker_flags() -> str:
    """Return the linker flags for a C program, quoted for a shell."""
    folder = library_path().resolve().parent
    flags = (f"-L{folder}", f"-l:{LIBRARY}", f"-Wl,-rpath,{folder}")
    return " ".join(shlex.quote(flag) for flag in flags)
