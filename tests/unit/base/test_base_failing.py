"""base/ when system calls fail: the page of counters, and random keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from failing import run_with_failing_calls

OPEN = """
def path():
    p = lib.siw_counters_path()
    return None if p == ffi.NULL else ffi.string(p).decode()
with failing(*{call!r}, times={times}):
    lib.siw_counters_init()
lib.siw_counters_test_count(4, 3)
assert lib.siw_counter_get(4) == 3
print(path())
"""
REFUSED = [("flock", 37), ("posix_fallocate", 28), ("mmap", 12)]  # ENOLCK, ENOSPC, ENOMEM
IDS = ["flock", "posix_fallocate", "mmap"]


def remaining_pages(run_dir: Path) -> list[str]:
    """Return the names of the pages in the user's run directory."""
    return [path.name for path in (run_dir / "siwarp").iterdir()]


@pytest.mark.parametrize("call", REFUSED, ids=IDS)
def test_the_page_falls_back_to_the_other_directory(
    build_dir: Path, tmp_path: Path, call: tuple[str, int]
) -> None:
    code = OPEN.format(call=call, times=1)
    told = run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip()
    assert told.startswith("/tmp/siwarp-")
    assert not Path(told).exists() and remaining_pages(tmp_path) == []


@pytest.mark.parametrize("call", REFUSED, ids=IDS)
def test_where_no_folder_can_have_a_page_counting_goes_on_without(
    build_dir: Path, tmp_path: Path, call: tuple[str, int]
) -> None:
    code = OPEN.format(call=call, times=2)
    assert run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip() == "None"
    assert remaining_pages(tmp_path) == []


def test_a_page_file_locked_by_another_process_is_not_opened(
    build_dir: Path, tmp_path: Path
) -> None:
    """The second flock call is on the new page file itself."""
    code = OPEN.format(call=("flock", 11), times=1).replace("times=1", "nth=2")
    told = run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip()
    assert told.startswith("/tmp/siwarp-") and remaining_pages(tmp_path) == []


def test_a_lock_that_a_signal_interrupts_is_asked_for_again(
    build_dir: Path, tmp_path: Path
) -> None:
    code = OPEN.format(call=("flock", 4), times=3)
    told = run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path)).strip()
    assert Path(told).parent == tmp_path / "siwarp"


def test_keys_differ_when_getrandom_fails(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
keys = [ffi.new("struct siw_sipkey *") for _ in range(2)]
with failing("getrandom", errno.EAGAIN, times=2):
    for key in keys:
        lib.siw_siphash_key(key)
first, second = (bytes(ffi.buffer(key)) for key in keys)
assert first[:8] != second[:8] and first[8:] != second[8:] and bytes(8) not in (first, second)
""",
    )


def test_without_pthread_atfork_there_is_no_counter_page(build_dir: Path, tmp_path: Path) -> None:
    """A child created by such a fork would count in its parent's page."""
    code = """
with failing("__register_atfork", errno.ENOMEM):
    lib.siw_counters_init()
lib.siw_counters_test_count(4, 3)
assert lib.siw_counter_get(4) == 3 and lib.siw_counters_path() == ffi.NULL
"""
    run_with_failing_calls(build_dir, code, XDG_RUNTIME_DIR=str(tmp_path))
    assert not (tmp_path / "siwarp").exists()


def test_sockets_are_refused_until_pthread_atfork_succeeds(build_dir: Path) -> None:
    run_with_failing_calls(
        build_dir,
        """
before = open_fds()
with failing("__register_atfork", errno.ENOMEM):
    try:
        Port()
    except OSError as e:
        assert e.errno == errno.ENOMEM
    else:
        raise AssertionError("a port")
assert open_fds() == before
p = Port()
p.open_udp()
p.close()
""",
    )


def test_a_capture_that_a_child_would_write_into_ends_the_process(
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
