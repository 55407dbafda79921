"""Write the C source of a cffi module from the blocks in the headers.

Declarations that Python needs are written once, in C headers, between ``/* cffi: begin */`` and
``/* cffi: end */``. This script collects these blocks, in the order in which the headers include
each other, and lets cffi write the module's C source. Only meson runs this script.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import cffi

BEGIN = "/* cffi: begin */"
END = "/* cffi: end */"
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<(siwarp/[^>]+)>)', re.MULTILINE)
# Attributes that cffi does not parse. Only their text is removed, so line numbers stay the same.
MARKS = re.compile(r"\b(SIW_(?:API|EXPORT|PUBLIC))\b|__attribute__\s*\(\(.*?\)\)")

# Types of the C standard library that the headers use.
PRELUDE = """
struct iovec { void *iov_base; size_t iov_len; };
struct sockaddr { ...; };
struct timespec { ...; };
typedef unsigned int socklen_t;
"""
# Internal headers that the Python package needs to read settings and counters.
PACKAGE_TOO = ("base/settings.h", "base/counters.h")
PRELUDE_C = """
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
"""


class BlockError(Exception):
    """The cffi blocks of a header are malformed; the text names the file and line."""


def read_cffi_blocks(header: Path) -> str:
    """Return the text of a header's cffi blocks, each after a line marker (``# LINE "FILE"``)."""
    out: list[str] = []
    inside = False
    for number, line in enumerate(header.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() == BEGIN:
            if inside:
                raise BlockError(f"{header}:{number}: a cffi block begins inside another")
            inside = True
            out.append(f'# {number + 1} "{header.name}"')
        elif line.strip() == END:
            if not inside:
                raise BlockError(f"{header}:{number}: end of a cffi block without a beginning")
            inside = False
        elif inside:
            if re.match(r"\s*#\s*(if|ifdef|ifndef|else|elif|endif|include)\b", line):
                raise BlockError(
                    f"{header}:{number}: a cffi block must not contain #if or #include"
                )
            out.append(MARKS.sub("", line))
    if inside:
        raise BlockError(f"{header}: the last cffi block does not end")
    return "\n".join(out)


def add_included_headers_in_order(root: Path, start: list[Path]) -> list[Path]:
    """Return ``start`` and the siwarp headers that they include, each after those it includes."""
    done: list[Path] = []
    seen: set[Path] = set()

    def add_includes_then_header(header: Path) -> None:
        if header in seen:
            return
        seen.add(header)
        for quoted, public in INCLUDE.findall(header.read_text(encoding="utf-8")):
            for found in (
                (header.parent / quoted, root / quoted) if quoted else (root / "include" / public,)
            ):
                if found.is_file():
                    add_includes_then_header(found.resolve())
                    break
        done.append(header)

    for header in start:
        add_includes_then_header(header.resolve())
    return done


def include_directive(root: Path, header: Path) -> str:
    """Return the ``#include`` line for this header."""
    public = root / "include"
    if header.is_relative_to(public):
        return f"#include <{header.relative_to(public).as_posix()}>"
    return f'#include "{header.relative_to(root).as_posix()}"'


def declared_functions(ffi: cffi.FFI) -> list[str]:
    """Return the names of the functions that the blocks declare."""
    kind = "function "
    return sorted(x[len(kind) :] for x in ffi._parser._declarations if x.startswith(kind))


def escape_for_make(path: Path) -> str:
    """Return a path, escaped for a make dependency file."""
    return str(path).replace(" ", "\\ ").replace("#", "\\#").replace("$", "$$")


def main() -> int:
    """Write the C source and its dependency file; return 1 after a message if a block is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", required=True)
    parser.add_argument("--root", required=True, type=Path, help="the folder siwarp/")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--depfile", required=True, type=Path)
    parser.add_argument(
        "--public", action="store_true", help="use the blocks of the public headers"
    )
    parser.add_argument(
        "--also", action="append", default=[], help="also use the blocks of this header"
    )
    parser.add_argument("layers", nargs="*", help="use the blocks of the headers in these folders")
    args = parser.parse_args()

    root: Path = args.root.resolve()
    folders = [root / "include" / "siwarp"] if args.public else [root / x for x in args.layers]
    start = [header for folder in folders for header in sorted(folder.rglob("*.h"))]
    if args.public:
        start += [root / header for header in PACKAGE_TOO]
    start += [root / header for header in args.also]
    headers = add_included_headers_in_order(root, start)
    try:
        found = [(header, text) for header in headers if (text := read_cffi_blocks(header))]
    except BlockError as e:
        print(e, file=sys.stderr)
        return 1

    ffi = cffi.FFI()
    ffi.cdef(PRELUDE)
    for header, text in found:
        try:
            ffi.cdef(text)
        except Exception as e:  # cffi raises several types of exceptions
            print(f"{header}: cffi cannot read a block of it: {e}", file=sys.stderr)
            return 1
    lines = [include_directive(root, header) for header, _ in found]
    if not args.public:
        # Weak symbols: in the tests' module, a function that is declared but not defined fails
        # only its own tests. tests/lint/c_symbols.py reports such functions.
        lines += [f"#pragma weak {name}" for name in declared_functions(ffi)]
    ffi.set_source(args.module, PRELUDE_C + "\n".join(lines) + "\n")
    ffi.emit_c_code(str(args.out))

    # The folders are dependencies as well, because adding or removing a header changes them.
    needed = [*folders, *headers]
    names = " ".join(escape_for_make(path) for path in needed)
    args.depfile.write_text(f"{escape_for_make(args.out)}: {names}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
