"""Tests that cause a refusal with each reason of the C table and check the text of the reason."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pace
import pytest
from harness.siwarp_process import SiwarpProcess
from unit.python import test_misuse, test_misuse_mw
from unit.python.misuse_harness import VerbsObjects
from unit.python.refused_calls import list_refused_calls, make_send_wr_struct, post_send_wr_struct

import siwarp
from siwarp._siwarp import ffi, lib
from siwarp.verbs import (
    AH,
    SendWR,
)
from siwarp.verbs.reason import replace_c_names_by_python_names

TESTS = Path(__file__).parents[2]
TABLE = Path(siwarp.__file__).parent / "base" / "reason.h"
NULL = ffi.NULL


def errno_by_reason_name() -> dict[str, int]:
    """Return the name and the errno value of every reason."""
    found = re.findall(r"\bX\((\w+), (E\w+),", TABLE.read_text("utf-8"))
    return {name: getattr(errno, number) for name, number in found}


def last_reason() -> tuple[str, str]:
    """Return the name and the text of the reason of the last call of the thread."""
    return (
        bytes(ffi.string(lib.siw_reason_name())).decode(),
        bytes(ffi.string(lib.siw_reason())).decode(),
    )


# ---- reasons caused in a separate process


def allocation_failure_options() -> dict[str, str]:
    """Return options with which the allocator of a sanitizer returns NULL and uses less memory."""
    more = {
        "TSAN_OPTIONS": ":allocator_may_return_null=1",
        "ASAN_OPTIONS": ":detect_stack_use_after_return=0",
    }
    return {name: os.environ[name] + tail for name, tail in more.items() if name in os.environ}


def run_program_and_get_reason(program: str, **environment: str) -> tuple[str, str]:
    """Run a program that ends with a refused call and return the name and text of the reason."""
    text = (
        "import resource\nfrom siwarp._siwarp import ffi, lib\nfrom siwarp.verbs import *\n"
        + program
        + "\nprint(ffi.string(lib.siw_reason_name()).decode())"
        "\nprint(ffi.string(lib.siw_reason()).decode())\n"
    )
    done = pace.run_command(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        seconds=120,
        start=SiwarpProcess,
        imports=("siwarp.verbs",),
        env=os.environ | allocation_failure_options() | {"PYTHONPATH": str(TESTS)} | environment,
    )
    assert done.returncode == 0, done.stderr
    name, words_of_c = done.stdout.splitlines()
    return name, words_of_c


EXHAUST_DESCRIPTORS = """
context = Context()
pd, cq = PD(context), CQ(context, 8)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""
PROGRAMS_BY_REASON: dict[str, tuple[str, dict[str, str]]] = {
    "DEVICE_FULL": ("c = Context()\nwhile lib.siw_alloc_pd(c._c):\n    pass", {}),
    "FAULTS_SETTING": (
        "lib.siw_open_device_by_addr(a) if (a := ffi.new('struct siw_addr *', {'family': 2, 'v4':"
        " b'\\x7f\\0\\0\\1'})) else 0",
        {"SIWARP_FAULTS": "banana"},
    ),
    "NO_DESCRIPTORS": (
        EXHAUST_DESCRIPTORS + "lib.siw_create_comp_channel(context._c_object())",
        {},
    ),
    "QP_NO_DESCRIPTORS": (
        EXHAUST_DESCRIPTORS + "try:\n    QP(pd, QPInitAttr(scq=cq))\nexcept OSError:\n    pass",
        {},
    ),
    "NO_MEMORY": (
        "context = Context()\n"
        "limit = int(open('/proc/self/statm').read().split()[0]) * 4096 + (8 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "lib.siw_create_cq(context._c_object(), 1 << 20, ffi.NULL, ffi.NULL, 0)",
        {},
    ),
    "STALE": (
        "import os\nfrom unit.device.test_device_fork import wait_for_sleeping_threads_under_asan\n"
        "context = Context()\nwait_for_sleeping_threads_under_asan()\n"
        "if os.fork():\n    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "lib.siw_alloc_pd(context._c)",
        {},
    ),
}


def assert_reason_text_is_readable(name: str, text: str) -> None:
    assert len(text.split()) > 4, (name, text)
    assert not re.search(r"[{}]|\(null\)|  ", text), (name, text)
    assert "\n" not in text
    said = replace_c_names_by_python_names(text)
    assert not re.search(r"\b(siw_(?!lo\b)|SIW_|ibv_)\w*", said), (name, said)


@pytest.mark.parametrize("expected", PROGRAMS_BY_REASON)
def test_reasons_of_refusals_in_a_separate_process_have_readable_texts(expected: str) -> None:
    program, environment = PROGRAMS_BY_REASON[expected]
    name, text = run_program_and_get_reason(program, **environment)
    assert name == expected
    assert_reason_text_is_readable(name, text)


def collect_reasons_of_refused_calls(verbs_objects: VerbsObjects, tmp: Path) -> dict[str, str]:
    """Make all refused calls and return the reasons that they had, each with one of its texts."""
    found: dict[str, str] = {}
    misuse = [row[1] for row in test_misuse.POSTING_MISUSE + test_misuse.STATE_MISUSE]
    misuse += [row[1] for row in test_misuse.CONNECTION_MISUSE + test_misuse_mw.WINDOW_MISUSE]
    # The last calls may close some of the objects.
    misuse += [row[1] for row in test_misuse.CREATION_MISUSE]
    for call in [*list_refused_calls(tmp), *misuse]:
        with contextlib.suppress(Exception):
            call(verbs_objects)
        name, text = last_reason()
        found.setdefault(name, text)
        with contextlib.suppress(siwarp.Error):
            if verbs_objects.ah.closed:
                verbs_objects.ah = AH(verbs_objects.pd, ("127.0.0.1", 9))
    found.pop("", None)
    return found


def test_every_reason_is_caused_by_a_refused_call_and_has_a_readable_text(
    verbs_objects: VerbsObjects, tmp_path: Path
) -> None:
    found = collect_reasons_of_refused_calls(verbs_objects, tmp_path)
    known = errno_by_reason_name()
    assert len(known) > 100
    assert set(found) - set(known) == set()
    missing = set(known) - set(found) - set(PROGRAMS_BY_REASON)
    assert missing == set(), "no refused call has these reasons"
    for name, text in found.items():
        assert_reason_text_is_readable(name, text)


@pytest.fixture
def cq_pointer(verbs_objects: VerbsObjects) -> Any:
    return verbs_objects.cq._c_object()


def test_the_reason_describes_only_the_last_call(
    verbs_objects: VerbsObjects, cq_pointer: Any
) -> None:
    assert lib.siw_resize_cq(cq_pointer, 0) == -errno.EINVAL
    name, text = last_reason()
    assert name == "CQ_SIZE"
    assert text == "cqe is 0: use a value from 1 to 1048576 (max_cqe)"
    # Reading the reason does not change the reason.
    assert last_reason() == (name, text)
    assert (
        lib.siw_query_device(verbs_objects.ctx._c_object(), ffi.new("struct siw_device_attr *"))
        == 0
    )
    assert last_reason() == ("", "")


def test_posts_polls_and_queries_of_numbers_do_not_change_the_reason(
    verbs_objects: VerbsObjects, cq_pointer: Any
) -> None:
    qp = verbs_objects.make_ud_qp()
    wc = ffi.new("struct siw_wc *")
    for fine in (
        lambda: qp.post_send(verbs_objects.make_send_wr()),
        lambda: lib.siw_poll_cq(cq_pointer, 1, wc),
        lambda: repr(
            [
                verbs_objects.cq,
                verbs_objects.mr,
                verbs_objects.ah,
                qp,
                verbs_objects.pd,
                verbs_objects.ctx,
            ]
        ),
    ):
        assert lib.siw_resize_cq(cq_pointer, 0) == -errno.EINVAL
        fine()
        assert last_reason()[0] == "CQ_SIZE"


def test_each_thread_has_its_own_reason(cq_pointer: Any) -> None:
    assert lib.siw_resize_cq(cq_pointer, 0) == -errno.EINVAL
    seen = []

    def collect_last_reasons() -> None:
        seen.append(last_reason())
        assert lib.siw_dealloc_pd(NULL) == -errno.EINVAL
        seen.append(last_reason())

    thread = threading.Thread(target=collect_last_reasons)
    thread.start()
    thread.join()
    assert seen == [("", ""), ("NULL_ARGUMENT", "pd is NULL: pass a valid pointer")]
    assert last_reason()[0] == "CQ_SIZE"


def test_the_errno_of_a_refusal_equals_the_errno_of_its_reason(verbs_objects: VerbsObjects) -> None:
    known = errno_by_reason_name()
    cm_id, ud, rc_qp = (
        verbs_objects.make_cm_id(),
        verbs_objects.make_ud_qp(),
        verbs_objects.make_rc_qp(),
    )
    for program in (
        lambda: lib.siw_poll_cq(NULL, 1, NULL),
        lambda: lib.siw_cm_bind_qp(cm_id._c_object(), ud._c_object()),
        lambda: lib.siw_close_device(verbs_objects.ctx._c_object()),
        lambda: lib.siw_qp_addr(rc_qp._c_object(), NULL, NULL),
    ):
        rc = program()
        assert rc == -known[last_reason()[0]]


def test_the_reason_of_a_full_send_queue_has_its_capacity(verbs_objects: VerbsObjects) -> None:
    qp = verbs_objects.make_ud_qp(max_send_wr=2)
    wr = make_send_wr_struct(verbs_objects)
    while (rc := post_send_wr_struct(qp, wr)) == 0:
        pass
    assert rc == -errno.ENOMEM
    assert last_reason()[0] == "SEND_FULL"
    assert "send queue of 2 requests is full" in last_reason()[1]


def test_the_error_of_a_refused_python_call_has_python_names(verbs_objects: VerbsObjects) -> None:
    with pytest.raises(siwarp.Error) as caught:
        verbs_objects.make_ud_qp().post_send(SendWR(sg=[verbs_objects.sge]))
    assert "SendWR(ah=AH(pd, (host, port)))" in str(caught.value)
    assert "siw_" not in str(caught.value)


def test_c_names_in_a_reason_are_replaced_by_complete_python_names() -> None:
    assert replace_c_names_by_python_names("siw_cm_bind_qp first") == "CMID.bind_qp() first"
    assert (
        replace_c_names_by_python_names("add SIW_ACCESS_LOCAL_WRITE")
        == "add AccessFlag.LOCAL_WRITE"
    )
    assert replace_c_names_by_python_names("see siw_something_else") == "see siw_something_else"
