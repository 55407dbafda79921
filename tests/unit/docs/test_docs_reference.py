"""The reference that `make site` generates, which must cover everything in the code."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from table import run_test_for_each_row

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/pages"))

import commands  # noqa: E402
import headers  # noqa: E402
import stage  # noqa: E402
import tables  # noqa: E402

INCLUDE = ROOT / "siwarp/include/siwarp"


@pytest.mark.parametrize("header", stage.HEADERS)
def test_each_function_and_type_of_a_header_is_on_its_reference_page(header: str) -> None:
    code = re.sub(r"/\*.*?\*/", "", (INCLUDE / header).read_text("utf-8"), flags=re.DOTALL)
    names = set(re.findall(r"^(?:\w[\w *]*?\*?)\b(siw_\w+)\(", code, re.MULTILINE))
    names |= set(re.findall(r"^(?:struct|enum|union) (\w+)(?: \{|;)", code, re.MULTILINE))
    text = stage.generated_doc_pages()[f"reference/c/{header.replace('.', '_')}.md"]
    assert names, "no declaration was found"
    assert not {name for name in names if not re.search(rf"\b{name}\b", text)}


def test_a_comment_in_a_header_is_attributed_to_the_next_declaration(tmp_path: Path) -> None:
    header = tmp_path / "x.h"
    header.write_text(
        "/* a license */\n/*\n * <x.h> - for tests.\n */\n#ifndef X_H\n\n"
        "/* ---- a part ---- */\n\n/* -EINVAL: never. */\nint siw_a(int b);\nint siw_c(void);\n"
        "/* alone */\n\nstruct siw_d {\n\tint e; /* here\n\t\t * and there */\n};\n"
        'const char *siw_f(void); /* "text" */\n#endif\n'
    )
    parsed = headers.parse_header(header)
    assert parsed.intro == "<x.h> - for tests."
    found = [(d.kind, d.name, d.comment, d.section) for d in parsed.declarations]
    assert found == [
        ("function", "siw_a", "-EINVAL: never.", "a part"),
        ("function", "siw_c", "", "a part"),
        ("struct", "siw_d", "", "a part"),
        ("function", "siw_f", '"text"', "a part"),
    ]


def test_an_unparsable_declaration_in_a_header_is_an_error(tmp_path: Path) -> None:
    header = tmp_path / "x.h"
    header.write_text("/* a license */\n/* for tests */\nint siw_number;\n")
    with pytest.raises(ValueError, match="siw_number"):
        headers.parse_header(header)


@run_test_for_each_row("package", [p for p in stage.PACKAGES if p != "siwarp"])
def test_each_public_python_name_is_on_the_page_of_its_package(package: str) -> None:
    text = stage.generated_doc_pages()[f"reference/python/{package}.md"]
    names = set(importlib.import_module(package).__all__) - set(tables.EXCEPTIONS)
    assert not {name for name in names if f":: {package}.{name}\n" not in text}
    exceptions = stage.generated_doc_pages()["reference/exceptions.md"]
    assert all(f"autoexception:: siwarp.{e}\n" in exceptions for e in tables.EXCEPTIONS)


def test_each_counter_has_a_reference_row_and_each_reason_a_heading() -> None:
    from siwarp.base import counters

    names = counters.read_own_counters()
    assert not {
        name
        for name in names
        if f"| `{name}` |" not in stage.generated_doc_pages()["reference/counters.md"]
    }
    source = (ROOT / "siwarp/base/reason.h").read_text("utf-8")
    wanted = re.findall(r"^\tX\((\w+), E", source, re.MULTILINE)
    assert [
        name for name, _, _ in tables.parse_refusal_reasons(ROOT / "siwarp/base/reason.h")
    ] == wanted


def test_each_command_has_a_man_page_with_its_options_and_valid_roff_requests() -> None:
    found = commands.list_commands()
    names = {command.name for command in found}
    assert {"siwarp", "siwarp-ping", "siwarp-run", "siwarp-bench-lat"} <= names
    for command in found:
        page = commands.man_page(command).replace("\\-", "-")
        assert page.startswith(f".TH {command.name.upper()} 1 ")
        assert not [what for what, _ in command.options if f"\\fB{what}\\fR\n" not in page]
        requests = {line.split()[0] for line in page.splitlines() if line[:1] in (".", "'")}
        assert requests <= {".TH", ".SH", ".PP", ".TP", ".nf", ".fi"}


def test_each_clause_and_requirement_has_a_row_on_the_coverage_pages() -> None:
    text = stage.generated_doc_pages()["background/coverage/rfc5041.md"]
    row = next(line for line in text.splitlines() if "</span>RFC5041-7.1-06 |" in line)
    assert "<details><summary>" in row
    source = "\n".join(p.read_text("utf-8") for p in (ROOT / "spec").glob("rfc5041/*.toml"))
    ids = re.findall(r'^id = "(\S+)"', source, re.MULTILINE)
    assert re.findall(r"</span>(RFC5041\S+) \|", text) == sorted(ids, key=text.index)
    assert len(ids) > 100
    assert (
        "</span>DGRAM-UD-1 |"
        in stage.generated_doc_pages()["background/coverage/datagram-iwarp.md"]
    )
