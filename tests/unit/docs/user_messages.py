"""Extraction of all error texts from the sources, with "…" for each variable part."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIES = "…"
#: A pattern for functions whose strings become part of the text of an error.
WORDS_OF = re.compile(r"_(invalid|busy|why|advice|reason)|process_exit_reason")
#: A pattern for a call of a C function that prints to users, and for the printed text.
C_CALL = re.compile(
    r"\b(?:siw_log_warn_user\(|capture_end_after_error\(|\w*fail\(|siw_log\(\w+,\s*(?:error|warn),)\s*"
    r'(?P<text>(?:"(?:[^"\\]|\\.)*"\s*)+)'
)
C_VARIES = re.compile(r"%[-+ #0-9.*]*(?:ll|l|z|h)?[a-zA-Z]")


@dataclass(frozen=True)
class ErrorText:
    """The text of an error and its location in the source."""

    text: str
    where: str


def _literal_text(node: ast.AST) -> str | None:
    """Return the text of a string expression, or None if the expression is not a literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = (_literal_text(v) if isinstance(v, ast.Constant) else VARIES for v in node.values)
        return "".join(part or "" for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _literal_text(node.left), _literal_text(node.right)
        return None if left is None and right is None else (left or VARIES) + (right or VARIES)
    return None


def _results_of_conditional_expression(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.IfExp):
        yield from _results_of_conditional_expression(node.body)
        yield from _results_of_conditional_expression(node.orelse)
    else:
        yield node


def _called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


#: Exceptions whose text the message of another error contains: "violates the protocol: ...".
PARTS_OF_MESSAGES = ("CreditError", "WireError")


def _is_exception_name(name: str) -> bool:
    if name in PARTS_OF_MESSAGES:
        return False
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return True
    others = ("PeerGone", "Timeout", "BadParameter", "_Failed", "DatagramLost", "error", "kind")
    return name in others or name.endswith("Error")


def _error_arguments(call: ast.Call) -> list[ast.AST]:
    """Return the arguments of a call that a user sees as an error."""
    name = _called_name(call)
    if _is_exception_name(name):
        return list(call.args)
    to_stderr = {keyword.arg for keyword in call.keywords} & {"err", "file"}
    if name in ("echo", "print") and to_stderr:
        return list(call.args)
    if name == "Finding" and len(call.args) == 3:
        state = call.args[1]
        return [] if isinstance(state, ast.Constant) and state.value == "good" else [call.args[2]]
    return []


def _advice_texts(table: ast.Dict) -> Iterator[ast.AST]:
    """Yield the texts in a table from errno or completion status to advice."""
    for key, value in zip(table.keys, table.values, strict=True):
        if key is not None and re.search(r"\b(_?errno\.E|WCStatus\.)", ast.unparse(key)):
            yield from value.elts if isinstance(value, ast.Tuple) else [value]


def _user_message_ast_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _error_arguments(node)
        elif isinstance(node, ast.Dict):
            yield from _advice_texts(node)
        elif isinstance(node, ast.FunctionDef) and WORDS_OF.match(node.name):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield inner.value


def python_error_messages(package: Path) -> set[ErrorText]:
    """Return the messages of all Python files of the package."""
    found = set()
    for file in package.rglob("*.py"):
        for shown in _user_message_ast_nodes(ast.parse(file.read_text("utf-8"))):
            for node in _results_of_conditional_expression(shown):
                text = _literal_text(node)
                # A string of only a name or a placeholder is no message: it contains another text.
                if text is not None and len(re.sub(f"[{VARIES}\\W]", "", text)) > 6 and " " in text:
                    where = f"{file.relative_to(package)}:{getattr(node, 'lineno', 0)}"
                    found.add(ErrorText(text, where))
    return found


def c_library_error_messages(package: Path) -> set[ErrorText]:
    """Return the messages that the C library prints."""
    found = set()
    for file in package.rglob("*.c"):
        source = file.read_text("utf-8")
        for call in C_CALL.finditer(source):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call["text"]))
            line = source[: call.start()].count("\n") + 1
            where = f"{file.relative_to(package)}:{line}"
            text = C_VARIES.sub(VARIES, text)
            if text != VARIES:
                found.add(ErrorText(text, where))
    return found
