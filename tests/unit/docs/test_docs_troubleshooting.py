"""TROUBLESHOOTING.md has an entry for what does not say by itself what to do, and for nothing else.

Statuses of completions, Terminates, events and counters are numbers and names: each has an entry. A
message that says what to do needs none, and has none.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from unit.docs.user_messages import VARIES, Text, c_messages, python_messages

from siwarp._siwarp import ffi, lib
from siwarp.verbs import errors

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "siwarp"
PAGE = ROOT / "TROUBLESHOOTING.md"
#: Counters that say that something happened, not that something is wrong.
TRAFFIC = {
    "tx_msgs", "rx_msgs", "tx_octets", "rx_octets", "connects", "accepts", "epoll_waits",
    "progress_wakeups", "tx_partial", "tx_eagain", "confirm_reads", "delivery_counts_tx",
    "delivery_counts_rx", "rnr_unexpected", "err_sent", "err_received",
    "rd_hellos", "rd_ce", "rd_acks", "rd_probes", "rd_restarted", "rd_evicted",
}  # fmt: skip

#: Texts that no entry is needed for: a pattern of where they stand, or of the text, and why.
EXEMPT = {
    r"^_build/": "met by who builds siwarp, whose compiler shows it",
    r"^pyverbs/": "pyverbs' own errors: they say what pyverbs says, then the reason",
    r"^inspect/(dgram|rdmap)\.py": "raised inside scapy, which then shows the octets as Raw",
    r"^siwarp capture: …, … octets": "names a file that was written",
    r"judged a success|should have ended it|has no attribute|asked for 1 completion": (
        "says that siwarp itself is wrong"
    ),
}


def keys() -> list[str]:
    """What the page is keyed by: the code in the first column of its tables."""
    found = []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| `"):
            found += re.findall(r"`([^`]+)`", line.split(" | ")[0])
    return found


def fits(key: str, text: str) -> bool:
    """Whether an entry is about a text: it stands in it, … being anything."""
    plain = text.replace("`", "'")
    return re.search(".*".join(map(re.escape, key.split(VARIES))), plain, re.DOTALL) is not None


#: What a message says to do begins with one of these, behind a colon, a semicolon or a bracket.
REMEDY = re.compile(
    r"(?:: |; |\(|, or |\. |, and )(?:`|'|(?:run|install|use|give|make|take|set|see|look|call"
    r"|connect|open|close|poll|leave|raise|lower|start|say|send|ask|reset|mend|wait|try|begin|end|accept"
    r"|read|register|post|bind|step|move|keep|put|let|have|name|drop|add|free|pass|sudo|pip|apt"
    r"|srq|cmid|asyncio)\b)",
    re.IGNORECASE,
)
#: Where numbers and names come from: they say nothing to do.
NAMES = re.compile(
    r"^(siw_wc_status_str|siw_event_type_str|siw_cm_event_str|a Terminate|base/counters)"
)


def says_what_to_do(text: Text) -> bool:
    """Whether a message needs no entry."""
    return not NAMES.search(text.where) and REMEDY.search(text.text) is not None


def exempt(text: Text) -> bool:
    return any(re.search(p, text.where) or re.search(p, text.text) for p in EXEMPT)


@functools.cache
def everything() -> frozenset[Text]:
    """All that the page must know: texts, statuses of completions, Terminates, counters."""
    found = python_messages(PACKAGE) | c_messages(PACKAGE)
    for status in range(1, 22):
        words = ffi.string(lib.siw_wc_status_str(status)).decode()
        found.add(Text(words, f"siw_wc_status_str({status})"))
    for kind in (*range(64), *range(lib.SIW_EVENT_QP_ERR_QUEUED, lib.SIW_EVENT_CONGESTED + 1)):
        for name in ("siw_event_type_str", "siw_cm_event_str"):
            words = ffi.string(getattr(lib, name)(kind)).decode()
            if words != "unknown event":
                found.add(Text(words, f"{name}({kind})"))
    for numbers, words in errors._CODES.items():
        found.add(Text(words, f"a Terminate's layer, type and code {numbers}"))
    for i in range(lib.siw_counters_count()):
        name = ffi.string(lib.siw_counter_name(i)).decode()
        if name not in TRAFFIC:
            found.add(Text(name, "base/counters.h"))
    return {text for text in found if not exempt(text)}


def test_every_error_that_does_not_say_what_to_do_has_an_entry() -> None:
    page = keys()
    needed = [t for t in everything() if not says_what_to_do(t)]
    missing = [t for t in needed if not any(fits(key, t.text) for key in page)]
    assert not missing, (
        f"{len(missing)} texts have no entry in TROUBLESHOOTING.md. Add a row to the table that it "
        "belongs to: | `a part of the text, … for what varies` | what happened | what to do |. Or "
        "have the text say what to do, or add it to EXEMPT with the reason. A ` in the text is ' "
        "in the page.\n" + "\n".join(sorted(f"  {t.where}: {t.text}" for t in missing))
    )


def test_every_entry_is_about_a_text_that_there_is() -> None:
    texts = [t.text for t in everything()]
    stale = [key for key in keys() if not any(fits(key, text) for text in texts)]
    assert not stale, (
        "TROUBLESHOOTING.md has entries for texts that siwarp does not show: mend their first "
        f"column or take them out: {stale}"
    )


def test_no_entry_repeats_a_message_that_says_what_to_do() -> None:
    texts = everything()
    repeated = []
    for key in keys():
        about = [t for t in texts if fits(key, t.text)]
        if about and all(says_what_to_do(t) for t in about):
            repeated.append(key)
    assert not repeated, f"these rows of TROUBLESHOOTING.md say what their message says: {repeated}"


def test_every_exemption_is_still_needed() -> None:
    texts = python_messages(PACKAGE) | c_messages(PACKAGE)
    for pattern in EXEMPT:
        assert any(re.search(pattern, t.where) or re.search(pattern, t.text) for t in texts)


def test_entries_are_long_enough_to_be_searched_for_and_say_what_to_do() -> None:
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| `"):
            key, happened, remedy = line.strip("| ").split(" | ")
            assert len(key) > 8, line
            assert len(happened.split()) > 1, line
            assert len(remedy.split()) > 1, line
    assert len(keys()) == len(set(keys()))
