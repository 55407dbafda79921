"""Remedies of all errors, in the message or in an entry of TROUBLESHOOTING.md.

Statuses of completions, Terminates, events and counters are numbers and names: each has an entry. A
message needs no entry if it says what to do, states the rule with its limit or accepted values, or
ends with the error of the kernel or of another program.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from unit.docs.user_messages import (
    VARIES,
    ErrorText,
    c_library_error_messages,
    python_error_messages,
)

from siwarp._siwarp import ffi, lib
from siwarp.verbs import errors

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "siwarp"
PAGE = ROOT / "TROUBLESHOOTING.md"
#: Counters of normal traffic, which need no remedy.
TRAFFIC = {
    "tx_msgs", "rx_msgs", "tx_octets", "rx_octets", "connects", "accepts", "epoll_waits",
    "tx_eagain", "confirm_reads", "delivery_counts_tx",
    "delivery_counts_rx", "rnr_unexpected", "err_sent", "err_received",
    "rd_acks", "rd_probes", "rd_restarted", "rd_evicted",
}  # fmt: skip

#: Texts without an entry in TROUBLESHOOTING.md: a pattern of text or location, and the reason.
EXEMPT = {
    r"^_build/": "shown by the compiler to a user who builds siwarp",
    r"^pyverbs/": "errors of pyverbs: they repeat its text, then add the reason",
    r"^inspect/(dgram|rdmap)\.py": "raised inside scapy, which then shows the octets as Raw",
    r"^ulp/adts/(endpoints|memory|receives)\.py": "reports a defect of siwarp itself",
    r"^siwarp capture: …, … octets": "reports a file that was written",
    r"judged a success|should have ended|has no attribute|asked for 1 completion"
    r"|^the channel is open$|no unit is being received": ("reports a defect of siwarp itself"),
}


def troubleshooting_table_keys() -> list[str]:
    """Return the keys of TROUBLESHOOTING.md: the code in the first column of its tables."""
    found = []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| `"):
            found += re.findall(r"`([^`]+)`", line.split(" | ")[0])
    return found


@functools.cache
def _regex_of_key(key: str) -> re.Pattern[str]:
    # The cache of re is smaller than the number of keys.
    return re.compile(".*".join(map(re.escape, key.split(VARIES))), re.DOTALL)


def key_matches_text(key: str, text: str) -> bool:
    """Return whether a key is part of a text; "…" in the key stands for any text."""
    return _regex_of_key(key).search(text.replace("`", "'")) is not None


#: A pattern for the beginning of a remedy, after punctuation or at the start of the message.
REMEDY = re.compile(
    r"(?:^|: |; |\(|, or |\. |, and |, )(?:`|'|--?\w|(?:run|install|use|give|make|take|set|see|look"
    r"|call|check|connect|open|close|poll|leave|raise|lower|increase|reduce|start|say|send|ask|reset"
    r"|mend|correct|wait|try|begin|end|accept|read|register|post|bind|step|move|keep|put|let|have|name"
    r"|acquire|create|find|split"
    r"|drop|add|free|pass|permit|remove|omit|listen|specify|choose|sudo|pip|apt|srq|cmid|asyncio)\b)",
    re.IGNORECASE,
)
#: A pattern for a rule with its limit or accepted values: the remedy is to follow the rule.
RULE = re.compile(
    r"\b(?:at most|at least|from \S+ to|(?:has|have) \d+ to|is (?:not )?one of|needs?|must"
    r"|requires?|expect(?:s|ed)|accepts?|permits?|only|alone|with commas|there are|given by"
    r"|is for|are of|or --\w+|are measured|are not inside|not a (?:pcapng|regular))\b"
    r"|…\.\.…|level\[|\?$"
)
#: A pattern for the error of the kernel, or of another program, at the end of a message.
CAUSE = re.compile(r"(?:[:;] |\()…+\)?$")
#: A pattern for the locations of texts that are only numbers or names, and so have no remedy.
NAMES = re.compile(
    r"^(siw_wc_status_str|siw_event_type_str|siw_cm_event_str|a Terminate|base/counters\.h)"
)


def error_text_has_remedy(text: ErrorText) -> bool:
    """Return whether a message contains its remedy."""
    return not NAMES.search(text.where) and REMEDY.search(text.text) is not None


def error_text_needs_troubleshooting_entry(text: ErrorText) -> bool:
    """Return whether a message has no remedy, no rule, and no error of another program."""
    if NAMES.search(text.where):
        return True
    return not any(pattern.search(text.text) for pattern in (REMEDY, RULE, CAUSE))


def is_exempt_error_text(text: ErrorText) -> bool:
    return any(re.search(p, text.where) or re.search(p, text.text) for p in EXEMPT)


@functools.cache
def error_texts_in_source() -> frozenset[ErrorText]:
    """Return the messages of the Python code and of the C library."""
    return frozenset(python_error_messages(PACKAGE) | c_library_error_messages(PACKAGE))


@functools.cache
def all_user_visible_texts() -> frozenset[ErrorText]:
    """Return all texts that may need an entry: messages, statuses, Terminates, counters."""
    found = set(error_texts_in_source())
    for status in range(1, 22):
        words = ffi.string(lib.siw_wc_status_str(status)).decode()
        found.add(ErrorText(words, f"siw_wc_status_str({status})"))
    for kind in (*range(64), *range(lib.SIW_EVENT_QP_ERR_QUEUED, lib.SIW_EVENT_CONGESTED + 1)):
        for name in ("siw_event_type_str", "siw_cm_event_str"):
            words = ffi.string(getattr(lib, name)(kind)).decode()
            if words != "unknown event":
                found.add(ErrorText(words, f"{name}({kind})"))
    for numbers, words in errors._CODES.items():
        found.add(ErrorText(words, f"a Terminate's layer, type and code {numbers}"))
    for i in range(lib.siw_counters_count()):
        name = ffi.string(lib.siw_counter_name(i)).decode()
        if name not in TRAFFIC:
            found.add(ErrorText(name, "base/counters.h"))
    return {text for text in found if not is_exempt_error_text(text)}


def test_every_error_has_a_remedy_in_its_message_or_a_troubleshooting_entry() -> None:
    page = troubleshooting_table_keys()
    needed = [t for t in all_user_visible_texts() if error_text_needs_troubleshooting_entry(t)]
    missing = [t for t in needed if not any(key_matches_text(key, t.text) for key in page)]
    assert not missing, (
        f"{len(missing)} texts have neither a remedy nor an entry in TROUBLESHOOTING.md. Add the "
        "remedy to the text. If it does not fit there, add a row to a table: | `a part of the "
        "text, … for parts that vary` | what happened | what to do |, with ' for a ` of the text.\n"
        + "\n".join(sorted(f"  {t.where}: {t.text}" for t in missing))
    )


def test_every_troubleshooting_entry_is_about_an_existing_text() -> None:
    texts = [t.text for t in all_user_visible_texts()]
    stale = [
        key
        for key in troubleshooting_table_keys()
        if not any(key_matches_text(key, text) for text in texts)
    ]
    assert not stale, (
        "TROUBLESHOOTING.md has entries for texts that siwarp does not show: correct their first "
        f"column or remove them: {stale}"
    )


def test_no_troubleshooting_entry_repeats_a_message_that_contains_its_remedy() -> None:
    texts = all_user_visible_texts()
    repeated = []
    for key in troubleshooting_table_keys():
        about = [t for t in texts if key_matches_text(key, t.text)]
        if about and all(error_text_has_remedy(t) for t in about):
            repeated.append(key)
    assert not repeated, (
        f"these rows of TROUBLESHOOTING.md repeat their message, remove them: {repeated}"
    )


def test_every_exemption_from_troubleshooting_entries_is_still_needed() -> None:
    for pattern in EXEMPT:
        assert any(
            re.search(pattern, t.where) or re.search(pattern, t.text)
            for t in error_texts_in_source()
        )


def test_troubleshooting_entries_are_unique_and_have_a_cause_and_a_remedy() -> None:
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| `"):
            key, *_, happened, remedy = line.strip("| ").split(" | ")
            assert len(key) > 8, line
            assert len(happened.split()) > 1, line
            assert len(remedy.split()) > 1, line
    assert len(troubleshooting_table_keys()) == len(set(troubleshooting_table_keys()))


def test_terminates_are_listed_with_their_vendor_err() -> None:
    listed = {
        (int(number, 16), re.findall(r"`([^`]+)`", line)[0])
        for line in PAGE.read_text("utf-8").splitlines()
        for number in re.findall(r"`(0x[0-9a-f]{6})`", line)
    }
    no_code = {(number, "local catastrophic error") for number in (0x0000FF, 0x010000)}
    assert listed - no_code == {
        (layer << 16 | kind << 8 | code, words)
        for (layer, kind, code), words in errors._CODES.items()
    }
    assert no_code < listed
