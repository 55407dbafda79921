"""The mutants and the tests of each layer, which are read from TOML files."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from mutants.anchor import CSourceTree, TextRange

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: The id of a clause or requirement; any other text in the field `clause` is a function name.
CLAUSE = re.compile(r"RFC\d{4}-[0-9A-Z.]+-\d+|DGRAM-[A-Z]+-\d+")


def path_and_replaced_text(tree: CSourceTree, place: TextRange, new: str) -> tuple[Path, str]:
    """Return the file of a place, and the text of the file with the place replaced by `new`."""
    text = tree.texts[place.path]
    return place.path, text[: place.start] + new + text[place.end :]


@dataclass(frozen=True)
class Mutant:
    """One change that makes the code wrong.

    `where` is the function (or table, enum, macro), `old` the text to replace in it, and `new` the
    replacement. `clause` is what the change violates: a clause, a requirement, or the function
    whose header documents the behaviour; `why` describes the effect in a sentence. `drawn` names
    the operator of a randomly drawn mutant. `by` is the test that detected the mutant last, which
    is run first; `survives` gives the reason why no test can detect the mutant. `cpu` is the flag
    of /proc/cpuinfo without which a processor cannot run the code.
    """

    layer: str
    id: str
    where: str
    old: str
    new: str
    clause: str
    why: str
    file: str | None = None
    cpu: str | None = None
    drawn: str | None = None
    by: str | None = None
    survives: str | None = None

    @property
    def digest(self) -> str:
        """A hash of the change, independent of the description of the mutant."""
        return hashlib.sha256(repr((self.where, self.old, self.new)).encode()).hexdigest()[:12]

    def find_place_in_code(self, tree: CSourceTree) -> TextRange:
        """Return the place in the C code that the mutant replaces, or raise LookupError."""
        return tree.find_place_in_code(self.where, self.old, self.file)

    def file_with_mutation(self, tree: CSourceTree) -> tuple[Path, str]:
        """Return the file that the mutant changes, and the changed text of the file."""
        return path_and_replaced_text(tree, self.find_place_in_code(tree), self.new)


@dataclass(frozen=True)
class Layer:
    """The tests to run for the mutants of a layer, in order, and the time limit in seconds."""

    name: str
    tests: list[str]
    limit: int


def read_mutation_layers(here: Path = HERE) -> dict[str, Layer]:
    """Return the layers of layers.toml by name."""
    with (here / "layers.toml").open("rb") as file:
        content = tomllib.load(file)
    return {name: Layer(name, entry["tests"], entry["limit"]) for name, entry in content.items()}


def cpu_can_run(mutant: Mutant, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this machine's processor can run the code that the mutant changes."""
    if mutant.cpu is None:
        return True
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text("utf-8"), re.MULTILINE)
    return flags is not None and mutant.cpu in flags[1].split()


def load_mutants(here: Path = HERE) -> list[Mutant]:
    """Return the mutants of all layers; a ValueError names an invalid entry."""
    known = {field.name for field in fields(Mutant)} - {"layer"}
    needed = {"id", "where", "old", "new", "clause", "why"}
    found: list[Mutant] = []
    for name in read_mutation_layers(here):
        path = here / f"{name}.toml"
        if not path.exists():
            continue
        with path.open("rb") as file:
            content = tomllib.load(file)
        for entry in content.get("mutant", []):
            wrong = (needed - entry.keys()) | (entry.keys() - known)
            if wrong:
                raise ValueError(f"{path.name}: {entry.get('id')}: {', '.join(sorted(wrong))}")
            found.append(Mutant(layer=name, **entry))
    return found


def store_mutants(mutants: list[Mutant], here: Path = HERE) -> None:
    """Write all mutants to the files of their layers."""
    for name in read_mutation_layers(here):
        mine = sorted((m for m in mutants if m.layer == name), key=lambda m: m.drawn is not None)
        text = "\n".join(_toml_entry(mutant) for mutant in mine)
        path = here / f"{name}.toml"
        if text:
            path.write_text(text, "utf-8")
        else:
            path.unlink(missing_ok=True)


def _toml_entry(mutant: Mutant) -> str:
    lines = ["[[mutant]]"]
    for field in fields(mutant):
        value = getattr(mutant, field.name)
        if field.name == "layer" or value is None:
            continue
        lines.append(f"{field.name} = {_toml_string(value)}")
    return "\n".join(lines) + "\n"


def _toml_string(value: str) -> str:
    """Return a text as a TOML string, without escapes if possible."""
    if "'" not in value and ("\\" in value or '"' in value or "\n" in value):
        return f"'''\n{value}'''" if "\n" in value else f"'{value}'"
    # A JSON string is a valid basic string in TOML.
    return json.dumps(value, ensure_ascii=False)
