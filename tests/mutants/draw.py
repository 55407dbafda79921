"""Draws random mutants, the same number from each layer: first an operator, then a place.

PYTHONPATH=tests .venv/bin/python -m mutants.draw --seed 1 --number 80 adds 80 mutants to the data.
A mutant that does not compile, or for which the compiler generates unchanged code, is replaced.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mutants.anchor import CSourceTree, Definition, Token, tokenize_c
from mutants.data import CLAUSE, ROOT, Mutant, load_mutants, read_mutation_layers, store_mutants

_FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", '-DSIW_VERSION="x"', "-DNDEBUG", "-fno-strict-aliasing"]
_FLAGS += ["-Isiwarp", "-Isiwarp/include", "-pthread", "-w", "-g0", "-O1", "-S"]
_WORD = re.compile(r"[A-Za-z_]\w*")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")
_NO_CALL = {"return", "if", "else", "for", "while", "do", "switch", "case", "goto", "break"}
_NO_CALL |= {"continue", "default", "sizeof", "static", "const"}
#: Placeholder for the original text in the new text of a change.
_AS_IT_WAS = "@"
# Statements that only write to the log have no documented behaviour.
_LOGS = re.compile(r"siw_trace\w*|SIW_(?:LOG|TRACE)\w*|siw_log\w*")
#: Files with code for other processors.
_ELSEWHERE = {"crc32c_arm.c"}


@dataclass(frozen=True)
class TokenChange:
    """A change that replaces the tokens `first` to `last` (inclusive) of a function by `new`."""

    operator: str
    first: int
    last: int
    new: str


Operator = Callable[[list[str]], Iterator[tuple[int, int, str]]]


def _make_swap_mutation_operator(pairs: dict[str, str], binary: bool) -> Operator:
    def draw_token_replacements(words: list[str]) -> Iterator[tuple[int, int, str]]:
        for at, word in enumerate(words):
            if word in pairs and at and (not binary or _is_operand(words[at - 1])):
                yield at, at, pairs[word]

    return draw_token_replacements


def _is_operand(word: str) -> bool:
    return (word in (")", "]") or word[0].isalnum() or word[0] == "_") and word not in _NO_CALL


def _number_increment_mutations(words: list[str]) -> Iterator[tuple[int, int, str]]:
    for at, word in enumerate(words):
        if re.fullmatch(r"[1-9]\d*", word):
            yield at, at, str(int(word) + 1)
        elif word == "0" and words[at + 1] in (";", ")") and words[at - 1] in ("=", "<", ">"):
            yield at, at, "1"


def _remove_negations(words: list[str]) -> Iterator[tuple[int, int, str]]:
    for at, word in enumerate(words):
        if word == "!":
            yield at, at, ""


def _closing_bracket(words: list[str], at: int) -> int:
    """Return the position of the closing bracket that matches the bracket at `at`."""
    depth = 0
    for end in range(at, len(words)):
        depth += (words[end] == "(") - (words[end] == ")")
        if depth == 0:
            return end
    raise ValueError("a bracket that does not close")


def _negate_conditions(words: list[str]) -> Iterator[tuple[int, int, str]]:
    for at, word in enumerate(words):
        if word == "if":
            end = _closing_bracket(words, at + 1)
            yield at + 1, end, f"(!{_AS_IT_WAS})"


def _draw_check_removals(words: list[str]) -> Iterator[tuple[int, int, str]]:
    for at, word in enumerate(words):
        if word == "if":
            end = _closing_bracket(words, at + 1)
            if words[end + 1] in ("return", "goto", "break", "continue"):
                stop = words.index(";", end)
                if words[stop + 1] != "else":
                    yield at, stop, ";"


def _draw_statement_removals(words: list[str]) -> Iterator[tuple[int, int, str]]:
    for at, word in enumerate(words[:-1]):
        if words[at - 1] not in (";", "{", "}") or not _WORD.fullmatch(word):
            continue
        if (
            word in _NO_CALL
            or _LOGS.fullmatch(word)
            or words[at + 1] not in ("(", "->", ".", "=", "[")
        ):
            continue
        stop = words.index(";", at)
        if not {"{", "}"} & set(words[at:stop]):
            yield at, stop, ";"


OPERATORS: dict[str, Operator] = {
    "boundary": _make_swap_mutation_operator({"<": "<=", "<=": "<", ">": ">=", ">=": ">"}, True),
    "equality": _make_swap_mutation_operator({"==": "!=", "!=": "=="}, True),
    "logic": _make_swap_mutation_operator({"&&": "||", "||": "&&"}, True),
    "arithmetic": _make_swap_mutation_operator({"+": "-", "-": "+", "+=": "-=", "-=": "+="}, True),
    "bits": _make_swap_mutation_operator(
        {"&": "|", "|": "&", "<<": ">>", ">>": "<<", "|=": "&="}, True
    ),
    "plus one": _number_increment_mutations,
    "no not": _remove_negations,
    "condition": _negate_conditions,
    "no check": _draw_check_removals,
    "no statement": _draw_statement_removals,
}


SENTENCES = {
    "boundary": "A bound is off by one.",
    "equality": "Equal and unequal are swapped.",
    "logic": "And and or are swapped.",
    "arithmetic": "A sum is a difference, or a difference a sum.",
    "bits": "A wrong operator works on bits.",
    "plus one": "A number is one too large.",
    "no not": "A condition lost its negation.",
    "condition": "A condition is turned round.",
    "no check": "A check is missing.",
    "no statement": "A statement is missing.",
    "constant": "A constant is that of its neighbour in the enum.",
}


def make_constant_mutation_operator(tree: CSourceTree) -> Operator:
    """Return the operator that replaces a constant by the next constant of the same enum."""
    following: dict[str, str] = {}
    for text in tree.texts.values():
        for body in re.findall(r"\benum\b[^;{}]*\{([^{}]*)\}", text):
            names = [w.text for w in tokenize_c(body) if _CONSTANT.fullmatch(w.text)]
            names = list(dict.fromkeys(names))
            if len(names) > 1:
                following.update(zip(names, [*names[1:], names[0]], strict=True))

    def mutate_constants(words: list[str]) -> Iterator[tuple[int, int, str]]:
        for at, word in enumerate(words):
            if word in following:
                yield at, at, following[word]

    return mutate_constants


def possible_mutations(words: list[str], operators: dict[str, Operator]) -> Iterator[TokenChange]:
    """Yield all changes that the operators can make to the tokens of a function."""
    body = words.index("{")
    for name, operator in operators.items():
        for first, last, new in operator(words):
            if first > body and not any(
                _LOGS.fullmatch(w) for w in words[max(0, first - 6) : last]
            ):
                yield TokenChange(name, first, last, new)


class MutationSites:
    """All places of a layer that operators can change, from which mutants are drawn."""

    def __init__(self, tree: CSourceTree, layer: str, operators: dict[str, Operator]) -> None:
        self.tree, self.layer = tree, layer
        self.places: dict[str, list[tuple[Path, Definition, TokenChange]]] = {}
        for name, defined in tree.defined.items():
            for path, chunk in defined:
                if (
                    tree.layer_of_file(path) != layer
                    or path.suffix != ".c"
                    or path.name in _ELSEWHERE
                ):
                    continue
                words = [t.text for t in tokenize_c(tree.texts[path], chunk.start, chunk.end)]
                if words[-1] != "}" or name != words[words.index("(") - 1 if "(" in words else 0]:
                    continue
                for change in possible_mutations(words, operators):
                    self.places.setdefault(change.operator, []).append((path, chunk, change))

    def draw_random_mutant(self, dice: random.Random) -> Mutant | None:
        """Draw a change; return the mutant, or None if it does not compile or has no effect."""
        operator = dice.choice(sorted(self.places))
        path, chunk, change = self.places[operator].pop(dice.randrange(len(self.places[operator])))
        if not self.places[operator]:
            del self.places[operator]
        mutant = self._mutant_from_change(path, chunk, change)
        if mutant is None:
            return None
        broken = mutant.file_with_mutation(self.tree)[1]
        before, after = (
            compile_to_assembly(path, self.tree.texts[path]),
            compile_to_assembly(path, broken),
        )
        return mutant if after is not None and after != before else None

    def _mutant_from_change(
        self, path: Path, chunk: Definition, change: TokenChange
    ) -> Mutant | None:
        text = self.tree.texts[path]
        there = tokenize_c(text, chunk.start, chunk.end)
        for first, last in _token_ranges_around(text, there, change):
            old = _joined_source(text, there[first : last + 1])
            head = _joined_source(text, there[first : change.first])
            tail = _joined_source(text, there[change.last + 1 : last + 1])
            was = _joined_source(text, there[change.first : change.last + 1])
            changed = change.new.replace(_AS_IT_WAS, was)
            new = " ".join(part for part in (head, changed, tail) if part)
            file = path.name if len(self.tree.defined[chunk.name]) > 1 else None
            try:
                self.tree.find_place_in_code(chunk.name, old, file)
            except LookupError:
                continue
            return Mutant(
                layer=self.layer,
                id=f"{chunk.name.removeprefix('siw_')}-{change.operator}".replace(" ", "-"),
                where=chunk.name,
                old=old,
                new=new,
                clause=nearest_clause_or_function(text, chunk, there[change.first].start, path),
                why=SENTENCES[change.operator],
                file=file,
                drawn=change.operator,
            )
        return None


def _token_ranges_around(
    text: str, there: list[Token], change: TokenChange
) -> Iterator[tuple[int, int]]:
    """Yield ranges of tokens around a change, each with one more line on both sides."""
    line = [text.count("\n", 0, token.start) for token in there]
    for more in range(4):
        low, high = line[change.first] - more, line[change.last] + more
        inside = [at for at in range(len(there)) if low <= line[at] <= high]
        yield inside[0], inside[-1]


def _joined_source(text: str, part: list[Token]) -> str:
    """Return the source text of tokens on one line, without comments."""
    out = ""
    for before, token in zip([None, *part], part, strict=False):
        if before is not None and before.end != token.start:
            out += " "
        out += token.text
    return out


def nearest_clause_or_function(text: str, chunk: Definition, at: int, path: Path) -> str:
    """Return the clause cited nearest to a position, or a function that a header declares."""
    cited = [(abs(found.start() - at), found.group()) for found in CLAUSE.finditer(text)]
    near = [c for c in cited if c[0] < 1500]
    if near:
        return min(near)[1]
    if not text.startswith("static", chunk.start):
        return chunk.name
    public = re.compile(r"^(?!static)[a-z][^;{}=()]*?\b(siw_\w+)\(", re.MULTILINE)
    after = public.search(text, chunk.end) or public.search(text)
    return after.group(1) if after else chunk.name


_assembled: dict[str, str | None] = {}


def compile_to_assembly(path: Path, text: str) -> str | None:
    """Return the assembly code of a C file with a given text, or None if it does not compile."""
    if text not in _assembled:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / path.name
            source.write_text(text, "utf-8")
            out = Path(folder) / "out.s"
            command = ["cc", *_FLAGS, f"-I{path.parent}", str(source), "-o", str(out)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True)
            _assembled[text] = None if done.returncode else out.read_text("utf-8")
    return _assembled[text]


def main() -> int:
    """Draw mutants and add them to the TOML files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, required=True, help="in all, the layers in turn")
    parser.add_argument("--layer", action="append", help="from this layer alone")
    args = parser.parse_args()
    tree = CSourceTree(ROOT)
    operators = {**OPERATORS, "constant": make_constant_mutation_operator(tree)}
    mutants = load_mutants()
    taken = {m.id for m in mutants}
    names = args.layer or list(read_mutation_layers())
    drawings = {name: MutationSites(tree, name, operators) for name in names}
    drawings = {name: drawing for name, drawing in drawings.items() if drawing.places}
    dice = random.Random(args.seed)
    for number in range(args.number):
        drawing = drawings[list(drawings)[number % len(drawings)]]
        mutant = None
        while drawing.places and (mutant is None or mutant.id in taken):
            mutant = drawing.draw_random_mutant(dice)
        if mutant is not None:
            taken.add(mutant.id)
            mutants.append(mutant)
            print(f"{mutant.layer:6} {mutant.id:40} {mutant.old}  ->  {mutant.new}")
    store_mutants(mutants)
    return 0


if __name__ == "__main__":
    sys.exit(main())
