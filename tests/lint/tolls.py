"""No function merely forwards to one function of another folder.

A function that only forwards is called a toll; its callers can call the lower function directly. A
toll may also cast, copy a struct from one type to another, assert, or convert or test the result. A
function is no toll if it has a loop, a lock or a second call, or if it writes state or reads state
for a decision. A member of a table of functions is no toll, because its callers do not know which
function they call. Calls of functions of base count as work, because every folder uses base.

Reads C code as formatted by clang-format: a function's brace is at the beginning of a line.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from layers import MAY_USE, PACKAGE

#: The reason why functions of ddp may merely forward to rd.
NO_RD = "rdmap stands on ddp alone, and rd is what knows peers"
ALLOWED: dict[str, str] = {
    "siw_ddp_rd_find_or_create_peer": NO_RD,
    "siw_ddp_rd_publish_stream": NO_RD,
    "siw_ddp_rd_release_unused_peer": NO_RD,
    "siw_ddp_rd_reject_peer": NO_RD,
    "siw_ddp_rd_peer_addr": NO_RD,
    "siw_ddp_rd_peer_ird": NO_RD,
    "siw_ddp_rd_set_datagram_expected": NO_RD,
    "siw_qp_check_usable": "the entry check of queue pairs, which names the parameter",
    "siw_ddp_dgram_max_tagged_payload": "subtracts this layer's headers from llp's limit",
}
MOST = 10
#: Headers whose inline functions only compute values, such as fields of a header on the wire.
OF_VALUES = re.compile(r"_wire\.h$|^rd_rnr\.h$")

FUNCTION = re.compile(
    r"^(?P<head>[A-Za-z_][^\n;{}#=]*(?:\n[ \t]+[^\n;{}#=]*)*)\n\{\n(?P<body>.*?)^\}$", re.M | re.S
)
NAME = re.compile(r"(\w+)\(")
CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
#: Words before a parenthesis that call nothing, or whose calls do not count.
NEUTRAL = {"if", "for", "while", "switch", "return", "sizeof", "_Alignof", "offsetof", "defined"}
NEUTRAL |= {"assert", "_Static_assert", "__builtin_expect", "memset", "memcpy"}
#: A member of a table of functions, in the table's initializer.
MEMBER = re.compile(r"^\s+\.\w+ = (\w+),$", re.M)
LOOP = re.compile(r"\b(for|while|do|switch|goto)\b")
#: Declaration of a local variable: a type and a name, with or without an initializer.
DECLARATION = re.compile(
    r"^(?:static |const |_Alignas\(\w+\) )*(?:struct |enum |union |unsigned )?[A-Za-z_]\w*"
    r"[ *]+(?:const )?(\w+)(?:\[[^\]]*\])*(?:, [ *]*\w+(?: = [^,;]*)?)*(?: = (?P<value>.*))?$",
    re.S,
)


@dataclass
class Function:
    """A function of the C code, without comments and strings."""

    folder: str
    file: str
    name: str
    static: bool
    body: str
    #: Whether the function is a member of a table of functions in its file.
    member: bool = False


def strip_to_code(text: str) -> str:
    """Return C code without comments, strings, attributes and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"'(?:\\.|[^'\\\n])+'", "0", text)
    text = re.sub(r"__attribute__\s*\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)\s*", "", text)
    text = re.sub(r"\bSIW_(?:API|EXPORT|PUBLIC)\b\s*", "", text)
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", "", text, flags=re.M)


def parse_functions(folder: str, file: str, text: str) -> list[Function]:
    """Return the functions that a C file defines."""
    found = []
    members = set(MEMBER.findall(text))
    for match in FUNCTION.finditer(strip_to_code(text)):
        if (name := NAME.search(match["head"])) and not match["head"].startswith("typedef"):
            static = match["head"].startswith("static")
            member = name[1] in members
            found.append(Function(folder, file, name[1], static, match["body"], member))
    return found


def remove_calls_of_functions(text: str, names: set[str]) -> str:
    """Return an expression without calls of the given functions and without their arguments."""
    while match := next((m for m in CALL.finditer(text) if m[1] in names), None):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[: match.start()] + " result " + text[end:]
    return text


def split_statements(body: str) -> list[str]:
    """Return the statements of a function body, each on one line; an if without its branches."""
    flat = re.sub(r"\s+", " ", body)
    out, depth, start = [], 0, 0
    for at, char in enumerate(flat):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if (
            char == "{"
            and re.search(r"(=|\)|\(|,|\{) ?$", flat[:at])
            and not brace_opens_block(flat, at)
        ):
            depth += 1
        elif char == "}" and depth:
            depth -= 1
        elif char in ";{}" and not depth:
            out.append(flat[start:at].strip())
            start = at + 1
    parts: list[str] = []
    for statement in out:
        text = re.sub(r"^else ?", "", statement)
        if text.startswith("if ("):
            end = closing_parenthesis(text, 3)
            parts += [text[: end + 1], text[end + 1 :].strip()]
        else:
            parts.append(text)
    return [part for part in parts if part]


def closing_parenthesis(text: str, at: int) -> int:
    """Return the position of the closing parenthesis that matches the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if not depth:
            return i
    return len(text) - 1


def brace_opens_block(flat: str, at: int) -> bool:
    """Return whether the brace at `at` begins a block of statements, not an initializer."""
    before = flat[:at].rstrip()
    if before.endswith(("=", ",", "(", "{")):
        return False
    # A closing parenthesis before the brace ends the type of a compound literal or a condition.
    return not re.search(r"\((?:const )?(?:struct|union) \w+(?:\[\])?\)$", before)


def statement_does_more_than_call(
    statement: str, far: set[str], trivial: set[str], own: set[str]
) -> bool:
    """Return whether a statement does more than call a function that is in `far` or `trivial`."""
    if LOOP.match(statement):
        return True
    if re.search(r"\+\+|--", statement):
        return True
    rest = remove_calls_of_functions(statement, far | trivial)
    if any(name not in NEUTRAL for name in CALL.findall(rest)):
        return True
    if declared := DECLARATION.match(statement):
        own.add(declared[1])
        return False
    if re.match(r"\(void\)\w+$|assert\(", rest):
        return False
    if assigned := re.match(r"(\*?)(\w+)(?:[.\[][^=]*)? [-+|&]?= ", rest):
        # An assignment to a local variable, or through a pointer of the caller, is not counted as
        # work; every other assignment is.
        return not (assigned[1] or assigned[2] in own)
    if re.match(r"(return|if) ?", rest):
        return "->" in rest
    return "->" in rest or "++" in rest or "--" in rest


def find_forwarding_functions(everything: list[Function]) -> list[str]:
    """Return the names of functions that only forward to one function of another folder."""
    # Static functions of source files are left out, because several may have the same name.
    home = {
        f.name: f.folder
        for f in everything
        if not f.static or (f.file.endswith(".h") and not OF_VALUES.search(f.file))
    }
    trivial: set[tuple[str, str]] = set()
    for _ in range(3):  # helper functions may call other ones, up to three levels deep
        for f in everything:
            mine = {name for folder, name in trivial if folder == f.folder}
            parts = [part.replace("->", ".") for part in split_statements(f.body)]
            own: set[str] = set()
            decides = re.search(r"\bif \(|[!=<>]=|&&|\|\|", f.body)
            if (
                parts
                and not decides
                and not any(statement_does_more_than_call(p, set(), mine, own) for p in parts)
            ):
                trivial.add((f.folder, f.name))
    static = {(f.folder, f.file, f.name) for f in everything if f.static}
    tolls = []
    for f in everything:
        far = [
            name
            for name in CALL.findall(f.body)
            if home.get(name, f.folder) not in {f.folder, "base"}
            and (f.folder, f.file, name) not in static
        ]
        mine = {name for folder, name in trivial if folder == f.folder}
        mine_all = {name for folder, _, name in static if folder == f.folder}
        own = set()
        # A function that passes a static function of its folder as a callback does not merely
        # forward.
        back = any(name in mine_all for name in re.findall(r"\b\w+\b(?!\s*\()", f.body))
        if (
            f.folder != "base"
            and not f.member
            and len(far) == 1
            and not back
            and not any(
                statement_does_more_than_call(part, set(far), mine, own)
                for part in split_statements(f.body)
            )
        ):
            tolls.append(f.name)
    return tolls


def main() -> int:
    """Print forwarding functions missing from ALLOWED, and wrong entries of it; return 1 if any."""
    everything = [
        f
        for folder in MAY_USE
        for path in sorted((PACKAGE / folder).rglob("*.[ch]"))
        # abi implements verbs by functions of siw.h, so its functions forward by design; sim
        # redefines the functions of llp.
        if folder not in {"abi", "bench", "sim", "wan"}
        for f in parse_functions(folder, path.name, path.read_text("utf-8"))
    ]
    where = {f.name: f"siwarp/{f.folder}/{f.file}" for f in everything}
    tolls = find_forwarding_functions(everything)
    bad = [
        f"{where[name]}: {name} only calls one function of another folder"
        for name in tolls
        if name not in ALLOWED
    ]
    bad += [
        f"tests/lint/tolls.py: {name} is no toll any more" for name in ALLOWED if name not in tolls
    ]
    if len(ALLOWED) > MOST:
        bad.append(f"tests/lint/tolls.py allows {len(ALLOWED)} tolls: {MOST} at the most")
    print("\n".join([*bad, f"{len(everything)} functions, {len(tolls)} tolls, {len(bad)} wrong"]))
    return 1 if bad or not everything else 0


if __name__ == "__main__":
    sys.exit(main())
