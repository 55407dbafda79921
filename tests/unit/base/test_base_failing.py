"""Counter pages, captures and random keys when system calls fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from failing import run_with_failing_calls

OPEN_PAGE = """
def path():
    p = lib.siw_counters_path()
    return None if p == ffi.NULL else ffi.string(p).decode()
with failing(*{call!r}, times={times}):
    lib.siw_counters_init()
lib.siw_counters_add_for_tests(4, 3)
assert lib.siw_counter_get(4) == 3
print(path())
"""
FAILING_CALLS = [("flock", 37), ("posix_fallocate", 28), ("mmap", 12)]  # ENOLCK, ENOSPC, ENOMEM
IDS = ["flock", "posix_fallocate", "mmap"]


def remaining_counter_pages(run_dir: Path) -> list[str]:
    """Return the names of the counter pages in the run directory of the user."""
    return [path.name for path in (run_dir / "siwarp").iterdir()]


@pytest.mark.parametrize("call", FAILING_CALLS, ids=IDS)
def test_a_counter_page_that_cannot_be_created_in_xdg_runtime_dir_is_created_in_tmp(
    build_dir: Path, tmp_path: Path, call: tuple[str, int]
) -> None:
    code = OPEN_PAGE.format(call=call, times=1)
    told = run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip()
    assert told.startswith("/tmp/siwarp-")
    assert not Path(told).exists() and remaining_counter_pages(tmp_path) == []


@pytest.mark.parametrize("call", FAILING_CALLS, ids=IDS)
def test_counters_work_without_a_counter_page(
    build_dir: Path, tmp_path: Path, call: tuple[str, int]
) -> None:
    code = OPEN_PAGE.format(call=call, times=2)
    assert run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip() == "None"
    assert remaining_counter_pages(tmp_path) == []


def test_a_counter_page_that_another_process_has_locked_is_not_used(
    build_dir: Path, tmp_path: Path
) -> None:
    """The second flock call locks the new counter page."""
    code = OPEN_PAGE.format(call=("flock", 11), times=1).replace("times=1", "nth=2")
    told = run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip()
    assert told.startswith("/tmp/siwarp-") and remaining_counter_pages(tmp_path) == []


def test_a_lock_call_of_a_counter_page_that_a_signal_interrupts_is_repeated(
    build_dir: Path, tmp_path: Path
) -> None:
    code = OPEN_PAGE.format(call=("flock", 4), times=3)
    told = run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip()
    assert Path(told).parent == tmp_path / "siwarp"


def test_random_keys_differ_even_if_getrandom_fails(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
keys = [ffi.new("struct siw_sipkey *") for _ in range(2)]
with failing("getrandom", errno.EAGAIN, times=2):
    for key in keys:
        lib.siw_siphash_make_key(key)
first, second = (bytes(ffi.buffer(key)) for key in keys)
assert first[:8] != second[:8] and first[8:] != second[8:] and bytes(8) not in (first, second)
""",
    )


def test_without_pthread_atfork_there_is_no_counter_page(build_dir: Path, tmp_path: Path) -> None:
    """Without a fork handler, a forked child would count in the page of its parent."""
    code = """
with failing("__register_atfork", errno.ENOMEM):
    lib.siw_counters_init()
lib.siw_counters_add_for_tests(4, 3)
assert lib.siw_counter_get(4) == 3 and lib.siw_counters_path() == ffi.NULL
"""
    run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path))
    assert not (tmp_path / "siwarp").exists()


def test_sockets_are_refused_until_pthread_atfork_succeeds(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
before = list_open_descriptors()
with failing("__register_atfork", errno.ENOMEM):
    try:
        Poller()
    except OSError as e:
        assert e.errno == errno.ENOMEM
    else:
        raise AssertionError("a poller was opened")
assert list_open_descriptors() == before
p = Poller()
p.open_udp()
p.close()
""",
    )


def test_opening_a_capture_without_pthread_atfork_aborts_the_process(
    build_dir: Path, tmp_path: Path
) -> None:
    run_with_failing_calls(
        build_dir,
        f"""
import signal
pid = os.fork()
if pid == 0:
    with failing("__register_atfork", errno.ENOMEM):
        lib.siw_capture_open(b"{tmp_path}/x.pcapng")
    os._exit(0)
assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGABRT
""",
    )
