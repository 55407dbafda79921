"""The script tools/sanitizer_reports.py, which selects the sanitizer reports about siwarp."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import sanitizer_reports

LINE = "==================\n"
GLIBC_REPORT = """\
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 8 at 0x7b0400017180 by thread T4:
    #0 free tsan_interceptors_posix.cpp:706 (libtsan.so.2.0.0+0x47e82)
    #1 free ../include/rtld-malloc.h:50 (ld-linux-x86-64.so.2+0x11785)
    #2 __GI__dl_deallocate_tls ../elf/dl-tls.c:682 (ld-linux-x86-64.so.2+0x11785)

  Previous write of size 8 at 0x7b0400017180 by thread T32:
    #0 malloc tsan_interceptors_posix.cpp:647 (libtsan.so.2.0.0+0x3ebb8)
    #1 siw_post_send ../../siwarp/qp/qp_post.c:80 (libsiwarp.so.0+0x8b983)

SUMMARY: ThreadSanitizer: data race ../include/rtld-malloc.h:50 in free
"""
SIWARP_REPORT = """\
WARNING: ThreadSanitizer: data race (pid=7)
  Write of size 8 at 0x7b0400017180 by thread T4:
    #0 free tsan_interceptors_posix.cpp:706 (libtsan.so.2.0.0+0x47e82)
    #1 siw_rd_close ../../siwarp/rd/rd.c:151 (libsiwarp.so.0+0x8b983)

  Previous write of size 8 at 0x7b0400017180 by thread T32:
    #0 malloc tsan_interceptors_posix.cpp:647 (libtsan.so.2.0.0+0x3ebb8)
    #1 __GI__dl_deallocate_tls ../elf/dl-tls.c:682 (ld-linux-x86-64.so.2+0x11785)

SUMMARY: ThreadSanitizer: data race ../../siwarp/rd/rd.c:151 in siw_rd_close
"""
END = "ThreadSanitizer: reported 1 warnings\n"


def test_a_data_race_at_the_end_of_a_thread_in_glibc_is_ignored() -> None:
    assert (
        sanitizer_reports.extract_report_part_about_siwarp(f"{LINE}{GLIBC_REPORT}{LINE}{END}") == ""
    )


@pytest.mark.parametrize(
    "reports", [(SIWARP_REPORT,), (GLIBC_REPORT, SIWARP_REPORT), (SIWARP_REPORT, GLIBC_REPORT)]
)
def test_every_other_data_race_is_reported(reports: tuple[str, ...]) -> None:
    text = "".join(f"{LINE}{report}{LINE}" for report in reports) + END
    part = sanitizer_reports.extract_report_part_about_siwarp(text)
    assert "siw_rd_close" in part and "rtld-malloc.h:50 in free" not in part


def test_an_error_of_address_sanitizer_is_reported() -> None:
    text = "==7==ERROR: AddressSanitizer: heap-use-after-free\n    #0 0x1 in main\n"
    assert sanitizer_reports.extract_report_part_about_siwarp(text) == text


def test_a_leak_is_reported_only_if_siwarp_is_in_its_stack() -> None:
    ours = "Direct leak of 8 byte(s) in 1 object(s) allocated from:\n    #0 x /siwarp/rd/rd.c:1\n"
    other = (
        "Direct leak of 9 byte(s) in 1 object(s) allocated from:\n    #0 x Objects/obmalloc.c:1\n"
    )
    head = "==7==ERROR: LeakSanitizer: detected memory leaks\n\n"
    assert sanitizer_reports.extract_report_part_about_siwarp(head + other) == ""
    part = sanitizer_reports.extract_report_part_about_siwarp(f"{head}{other}\n{ours}")
    assert "8 byte(s)" in part and "9 byte(s)" not in part
