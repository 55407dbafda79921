# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Generates the reference of the C interface from the comments in its headers.

A header consists of comments and declarations. A comment describes the declaration that follows; a
comment of the form ``---- title ----`` begins a section; the first comment after the license
describes the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Declaration", "header_doc_page", "parse_header"]

_COMMENT = re.compile(r"[ \t]*/\*(.*?)\*/[ \t]*\n?", re.DOTALL)
_SECTION = re.compile(r"-{4} (.+?) -{4,}")
_DEFINE = re.compile(r"#define (SIW_\w+) +(\w+)")
_TYPE = re.compile(r"(struct|enum|union) (\w+)")
_FUNCTION = re.compile(r"(\w+)\(")
_KNOWN = re.compile(r"(?<!/)\bsiw_\w+")


@dataclass
class Declaration:
    """A declaration of a header; ``kind`` is a directive of Sphinx's C domain without ``c:``."""

    kind: str
    name: str
    code: str
    comment: str = ""
    section: str = ""


@dataclass
class Header:
    """A C header: its name, its description and its declarations."""

    name: str
    intro: str = ""
    declarations: list[Declaration] = field(default_factory=list)


def parse_header(path: Path) -> Header:
    """Parse a C header; return its description and its declarations, in order."""
    header = Header(path.name)
    text = path.read_text("utf-8").partition("*/\n")[2]  # skip the license
    text = text.replace('extern "C" {', "")
    section = comment = ""
    for piece, is_comment in _split_comments(text):
        if is_comment and (title := _SECTION.fullmatch(piece)):
            section, comment = title[1], ""
        elif is_comment and not header.intro:
            header.intro = piece
        elif is_comment:
            comment = piece
        elif piece == "":
            comment = ""
        elif found := _parse_declaration(piece):
            found.comment, found.section = found.comment or comment, section
            header.declarations.append(found)
            comment = ""
    header.declarations = _without_repeated_types(header.declarations)
    return header


def _without_repeated_types(declarations: list[Declaration]) -> list[Declaration]:
    """Return the declarations without repeated and redundant forward declarations of types."""
    seen = {(d.kind, d.name) for d in declarations if "{" in d.code}
    kept = []
    for found in declarations:
        key = (found.kind, found.name)
        if "{" in found.code or key not in seen:
            kept.append(found)
            seen.add(key)
    return kept


def _split_comments(text: str) -> Iterator[tuple[str, bool]]:
    """Yield comments (True) and declarations (False) of a header; "" stands for an empty line."""
    code = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    at = 0
    while at < len(text):
        comment = _COMMENT.match(text, at)
        if comment:
            yield _comment_text(comment[1]), True
            at = comment.end()
            continue
        end = _end_of_declaration(code, at)
        yield text[at:end].strip(), False
        at = end


def _end_of_declaration(code: str, at: int) -> int:
    """Return the end of the line that closes all braces and parentheses of a declaration."""
    depth = 0
    while at < len(code):
        end = code.find("\n", at) + 1 or len(code)
        depth += len(re.findall(r"[({]", code[at:end])) - len(re.findall(r"[)}]", code[at:end]))
        at = end
        if depth <= 0:
            break
    return at


def _comment_text(comment: str) -> str:
    """Return the text of a C comment without the stars on the left."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip().split("\n")]
    return "\n".join(lines).strip()


def _parse_declaration(code: str) -> Declaration | None:
    """Parse a C declaration; return None for preprocessor lines and closing braces."""
    if define := _DEFINE.fullmatch(code):
        return Declaration("macro", define[1], code)
    if code.startswith(("#", "}")):
        return None
    code, _, behind = code.partition("; /*") if "{" not in code else (code, "", "")
    bare = code.removeprefix("SIW_IBV ")
    type_ = _TYPE.match(bare)
    if type_ and re.match(r"\s*[{;]", bare[type_.end() :]):
        return Declaration(type_[1], type_[2], code)
    function = _FUNCTION.search(bare)
    if function is None:
        raise ValueError(f"this declaration is neither a type nor a function:\n{code}")
    comment = _comment_text(behind.removesuffix("*/"))
    return Declaration("function", function[1], bare.rstrip(";"), comment)


def header_doc_page(header: Header, names: dict[str, str]) -> str:
    """Return the Markdown page of a header; ``names`` has the kind of each name of all headers."""
    lines = [f"# `<siwarp/{header.name}>`", "", _comment_markdown(header.intro, names), ""]
    section = ""
    for found in header.declarations:
        if found.section != section:
            section = found.section
            lines += [f"## {section[0].upper()}{section[1:]}", ""]
        lines += [*_declaration_directive(found, names), ""]
    return "\n".join(lines)


def _declaration_directive(found: Declaration, names: dict[str, str]) -> list[str]:
    """Return the lines of a declaration as a directive of Sphinx's C domain.

    Sphinx has one name space where C has two, so a function with the name of a struct is shown
    without a directive.
    """
    if found.kind == "function" and names[found.name] != "function":
        return ["```c", f"{found.code};", "```", "", _comment_markdown(found.comment, names)]
    signature = found.name
    if found.kind == "function":
        signature = re.sub(r"\s+", " ", found.code).replace("[]", "*")
    body = [_comment_markdown(found.comment, names), ""] if found.comment else []
    if "{" in found.code or found.kind == "macro":
        body += ["```c", *found.code.expandtabs(8).split("\n"), "```"]
    return [f"::::{{c:{found.kind}}} {signature}", *body, "::::"]


def _comment_markdown(text: str, names: dict[str, str]) -> str:
    """Return a comment as Markdown: names become links, indented lines stay unchanged."""
    blocks = []
    for block in re.split(r"\n\s*\n", text):
        if re.search(r"^\S.*\n +\S|^ {2,}|\S {3,}\S", block, re.MULTILINE) and "- " not in block:
            blocks.append(f"```text\n{block}\n```")
        else:
            escaped = re.sub(r"([*<>\[\]`|_#])", r"\\\1", block).replace(r"\_", "_")
            blocks.append(_KNOWN.sub(lambda m: _reference_link(m[0], names), escaped))
    return "\n\n".join(blocks)


def _reference_link(name: str, names: dict[str, str]) -> str:
    role = {"function": "func", None: None}.get(names.get(name), names.get(name))
    return f"{{c:{role}}}`{name}`" if role else f"`{name}`"
