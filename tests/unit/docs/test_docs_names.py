"""Names of the C and Python interfaces that the user pages mention must exist."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

from table import run_test_for_each_row

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/pages"))

import headers  # noqa: E402
import stage  # noqa: E402

#: The pages for users. Those of docs/architecture name functions that no public header declares.
PAGES = sorted(
    page for page in (ROOT / "docs").rglob("*.md") if page.parent != ROOT / "docs/architecture"
)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DECLARED = {
    name
    for header in stage.HEADERS
    for found in headers.parse_header(ROOT / "siwarp/include/siwarp" / header).declarations
    for name in re.findall(r"\bsiw_\w+", f"{found.name} {found.code}")
}
#: Names of devices in the pages, which contain the name of a network interface.
DEVICES = {"siw_lo", "siw_eth0", "siw_"}


def dotted_python_name_exists(dotted: str) -> bool:
    """Return whether a dotted name is a module or a member reachable from one."""
    parts = dotted.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 1):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[: i + 1]))
            except ModuleNotFoundError as error:
                if error.name is not None and not error.name.startswith("siwarp"):
                    return True  # the module needs a package of an extra that is not installed
                return part in getattr(found, "__annotations__", {})
        found = getattr(found, part)
    return True


@run_test_for_each_row("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_interface_name_that_a_page_quotes_as_code_exists(page: Path) -> None:
    spans = CODE.findall(page.read_text("utf-8"))
    c = {name for span in spans for name in re.findall(r"(?<![\w/-])siw_\w*", span)}
    assert not c - DECLARED - DEVICES
    # A span with == is a Wireshark display filter, whose fields have similar names.
    spans = [span for span in spans if "==" not in span]
    python = {name for span in spans for name in re.findall(r"(?<![\w/.])siwarp(?:\.\w+)+", span)}
    of_cm = re.compile(r"(?<![\w.])(?:CM(?:ID|EventChannel)|Connection)(?:\.\w+)?")
    python |= {f"siwarp.cm.{name}" for span in spans for name in of_cm.findall(span)}
    assert not {name for name in python if not dotted_python_name_exists(name)}
