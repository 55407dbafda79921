"""The counters, and the counter page, a file from which other processes read the counters."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from _siwarp_layers import ffi, lib

from siwarp.base import counters

Child = Callable[..., CompletedProcess[str]]

NAMES = [ffi.string(lib.siw_counter_name(i)).decode() for i in range(lib.siw_counters_count())]
EXPECTED_NAMES_TEXT = """
    tx_msgs rx_msgs tx_octets rx_octets drop_short drop_crc drop_version drop_header drop_qn
    drop_opcode
    drop_qkey drop_no_buffer drop_too_long drop_rxq_overflow drop_source
    err_found err_sent err_limited err_unsent err_received err_stale err_malformed err_lost
    drop_late drop_partial drop_access uc_missing
    record_partial record_early record_full record_ranges
    send_errors terminate_tx
    terminate_rx crc_errors connects accepts rejects startups_paused
    startups_refused startup_timeouts startup_strangers
    addrs_unbound pair_retries pair_refused pair_addresses pair_strangers
    sidr_retries sidr_responses sidr_response_retries sidr_cookies
    drop_sidr_length drop_sidr_version drop_sidr_field drop_sidr_id
    drop_sidr_cookie drop_sidr_share drop_sidr_full
    confirm_reads confirm_none delivery_counts_tx delivery_counts_rx rnr_unexpected rnr_expired
    cq_overflow
    rd_ce rd_acks rd_probes rd_retransmits rd_duplicates rd_not_ready rd_gone rd_restarted
    rd_evicted
    rd_mtu_lowered
    drop_rd_window drop_rd_ack drop_rd_epoch drop_rd_hello drop_rd_cookie drop_rd_peers
    epoll_waits tx_eagain icmp_errors
    fault_loss fault_blackout fault_limit fault_dup fault_reorder fault_corrupt fault_delay
    fault_reset fault_short fault_closed
"""
EXPECTED_NAMES = EXPECTED_NAMES_TEXT.split()

INIT = """
import os
lib.siw_counters_init()
def path():
    p = lib.siw_counters_path()
    return None if p == ffi.NULL else ffi.string(p).decode()
"""


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new directory that is XDG_RUNTIME_DIR of the test process and of its children."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


class CountingProcess:
    """A process with a counter page that executes Python statements sent line by line."""

    def __init__(self) -> None:
        folder = str(Path(sys.modules["_siwarp_layers"].__file__ or "").parent)
        parts = filter(None, [folder, os.environ.get("PYTHONPATH")])
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-uc",
                "from _siwarp_layers import ffi, lib\n" + INIT + "print(path())\n"
                "import sys\nfor line in sys.stdin: exec(line); print('done')\n",
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(parts)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.path = Path(self.process.stdout.readline().strip())
        assert self.path.is_absolute(), "the child has no counter page"

    def execute(self, line: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def __enter__(self) -> CountingProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.communicate(timeout=30)


def test_the_counter_table_has_each_counter_with_a_help_text() -> None:
    assert NAMES == EXPECTED_NAMES
    for i in range(len(NAMES)):
        assert len(ffi.string(lib.siw_counter_help(i))) > 10
    for i in (-1, len(NAMES)):
        assert lib.siw_counter_name(i) == lib.siw_counter_help(i) == ffi.NULL
        assert lib.siw_counter_get(i) == 0


def test_every_counter_name_fits_into_the_counter_page() -> None:
    assert max(map(len, NAMES)) < counters.NAME_SIZE


def test_counts_from_before_the_creation_of_the_counter_page_are_in_the_page(
    run_in_child: Child, runtime_dir: Path
) -> None:
    code = f"""
lib.siw_counters_add_for_tests(4, 3)
assert lib.siw_counters_path() == ffi.NULL
{INIT}
lib.siw_counters_add_for_tests(4, 1 << 40)
data = open(path(), 'rb').read()
print(lib.siw_counter_get(4), int.from_bytes(data[64 + 32:64 + 40], 'little'))
"""
    wanted = 3 + (1 << 40)
    assert run_in_child(code).stdout.split() == [str(wanted), str(wanted)]


def test_the_counter_page_and_its_directory_are_accessible_only_to_the_user(
    runtime_dir: Path,
) -> None:
    old = os.umask(0)
    try:
        with CountingProcess() as p:
            assert p.path == runtime_dir / "siwarp" / str(p.process.pid)
            assert stat.S_IMODE(p.path.stat().st_mode) == 0o600
            assert stat.S_IMODE(p.path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(old)


def test_another_process_reads_the_counters_of_a_running_process(runtime_dir: Path) -> None:
    with CountingProcess() as p:
        assert counters.read_counters(p.process.pid) == dict.fromkeys(EXPECTED_NAMES, 0)
        p.execute(
            "[lib.siw_counters_add_for_tests(i, i + 1) for i in range(lib.siw_counters_count())]"
        )
        assert counters.read_counters(p.process.pid) == {
            n: i + 1 for i, n in enumerate(EXPECTED_NAMES)
        }
        assert p.process.pid in counters.pids_with_readable_counters()
    assert p.process.pid not in counters.pids_with_readable_counters()


def test_the_counter_page_is_deleted_at_process_exit(runtime_dir: Path) -> None:
    with CountingProcess() as p:
        assert p.path.exists()
    assert not p.path.exists()
    with pytest.raises(counters.CountersError, match="no counters"):
        counters.read_counters(p.process.pid)


def test_initializing_the_counters_a_second_time_changes_nothing(
    run_in_child: Child, runtime_dir: Path
) -> None:
    code = f"""{INIT}
lib.siw_counters_add_for_tests(0, 9)
before = path()
lib.siw_counters_init()
print(before == path(), lib.siw_counter_get(0), len(os.listdir(os.path.dirname(before))))
"""
    assert run_in_child(code).stdout.split() == ["True", "9", "1"]


def test_concurrent_counts_of_several_threads_are_not_lost(
    run_in_child: Child, runtime_dir: Path
) -> None:
    code = """
import threading
def count_repeatedly():
    for _ in range(20000):
        lib.siw_counters_add_for_tests(1, 1)
threads = [threading.Thread(target=count_repeatedly) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(lib.siw_counter_get(1))
"""
    assert run_in_child(INIT + code).stdout.split() == ["80000"]


FORK = """
lib.siw_counters_add_for_tests(0, 5)
parent = path()
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    first = (path(), lib.siw_counter_get(0))
    lib.siw_counters_add_for_tests(0, 100)
    %s
    os.write(w, repr((first, lib.siw_counter_get(0), path())).encode())
    os.close(w)
    import sys
    sys.exit(0)
os.close(w)
told = eval(os.read(r, 4096).decode())
assert os.waitpid(pid, 0)[1] == 0
print(repr((told, pid, parent, os.path.exists(parent), lib.siw_counter_get(0),
            sorted(os.listdir(os.path.dirname(parent))))))
"""


def test_a_forked_child_has_its_own_counters_and_does_not_change_the_parents_page(
    run_in_child: Child, runtime_dir: Path
) -> None:
    told, _, parent, kept, count, files = eval(run_in_child(INIT + FORK % "pass").stdout)
    assert told == ((None, 0), 100, None)
    assert kept and count == 5
    assert files == [Path(parent).name]
    assert not Path(parent).exists()


def test_a_forked_child_that_initializes_its_counters_gets_its_own_counter_page(
    run_in_child: Child, runtime_dir: Path
) -> None:
    out = run_in_child(INIT + FORK % "lib.siw_counters_init()").stdout
    told, pid, parent, kept, count, _ = eval(out)
    assert told == ((None, 0), 100, str(runtime_dir / "siwarp" / str(pid)))
    assert kept and count == 5 and Path(parent).name != str(pid)
    assert list((runtime_dir / "siwarp").iterdir()) == []


def test_a_forked_child_does_not_keep_the_counter_page_of_its_killed_parent_locked(
    runtime_dir: Path,
) -> None:
    with CountingProcess() as p:
        # The statement returns only when the grandchild runs Python code. By then, the fork
        # handlers have released the inherited page.
        p.execute(
            "r, w = os.pipe(); pid = os.fork(); "
            "os.read(r, 1) if pid else "
            "(os.write(w, b'.'), __import__('time').sleep(60), os._exit(0))"
        )
        grandchild = int(
            Path(f"/proc/{p.process.pid}/task/{p.process.pid}/children").read_text().split()[0]
        )
        try:
            p.process.kill()
            p.process.wait(30)
            assert p.path.exists()
            with CountingProcess():
                assert not p.path.exists()
        finally:
            os.kill(grandchild, 9)


def test_the_counter_page_of_a_killed_process_is_deleted_by_the_next_process(
    runtime_dir: Path,
) -> None:
    with CountingProcess() as p:
        p.process.kill()
        p.process.wait(30)
        assert p.path.exists()
        with pytest.raises(counters.CountersError, match="not running"):
            counters.read_counters(p.process.pid)
        # The test asks for this process only, because others may have counter pages in /tmp.
        assert p.process.pid not in counters.pids_with_readable_counters()
        with CountingProcess() as q:
            assert not p.path.exists()
            assert q.process.pid in counters.pids_with_readable_counters()
            assert p.process.pid not in counters.pids_with_readable_counters()


def test_cleanup_of_stale_counter_pages_keeps_live_pages_and_other_files(runtime_dir: Path) -> None:
    with CountingProcess() as p:
        folder = p.path.parent
        (folder / "notes").write_text("x")
        (folder / "12x").write_text("x")
        (folder / "13").symlink_to(folder / "notes")
        (folder / "14").mkdir()
        # A page can be locked by a process that is not visible in this PID namespace.
        held = folder / "999999999"
        held.write_bytes(b"x")
        with held.open("rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            with CountingProcess():
                left = {x.name for x in folder.iterdir()}
        assert left >= {"notes", "12x", "13", "14", "999999999", p.path.name}
        with CountingProcess():
            assert not held.exists()


@pytest.mark.parametrize("what", ["symlink", "mode", "file", "relative", "missing"])
def test_an_untrusted_directory_is_not_used_for_counter_pages(
    run_in_child: Child, tmp_path: Path, what: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    env = {"XDG_RUNTIME_DIR": str(run)}
    if what == "symlink":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (run / "siwarp").symlink_to(tmp_path / "elsewhere")
    elif what == "mode":
        (run / "siwarp").mkdir()
        (run / "siwarp").chmod(0o750)
    elif what == "file":
        (run / "siwarp").write_text("")
    elif what == "relative":
        env["XDG_RUNTIME_DIR"] = os.path.relpath(run)
    else:
        env["XDG_RUNTIME_DIR"] = str(run / "not-there")
    done = run_in_child(
        INIT + "lib.siw_counters_add_for_tests(2, 7); print(path(), lib.siw_counter_get(2))", **env
    )
    path, count = done.stdout.split()
    assert path.startswith(f"/tmp/siwarp-{os.geteuid()}/") or path == "None"
    assert count == "7"
    assert done.stderr == ""
    assert not (tmp_path / "elsewhere").exists() or not list((tmp_path / "elsewhere").iterdir())


def test_a_directory_lock_that_is_never_released_does_not_block_the_counters(
    run_in_child: Child, runtime_dir: Path
) -> None:
    folder = runtime_dir / "siwarp"
    folder.mkdir(mode=0o700)
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        done = run_in_child(
            INIT + "lib.siw_counters_add_for_tests(2, 7); print(lib.siw_counter_get(2))"
        )
    finally:
        os.close(fd)
    assert done.stdout.split() == ["7"]
    assert list(folder.iterdir()) == []


def build_counter_page(**changes: int | bytes) -> bytes:
    """Return a counter page of this process with two counters, with the given header fields."""
    fields: dict[str, int | bytes] = {
        "magic": b"siwcntrs",
        "version": 1,
        "count": 2,
        "pid": os.getpid(),
        "start": int(Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]),
    }
    fields.update(changes)
    head = struct.pack(
        "=8sIIIIQ32x",
        fields["magic"],
        fields["version"],
        fields["count"],
        fields["pid"],
        0,
        fields["start"],
    )
    return head + struct.pack("=QQ32s32s", 11, 22, b"a_new_counter", b"tx_msgs")


@pytest.fixture
def own_counter_page_path(runtime_dir: Path) -> Path:
    (runtime_dir / "siwarp").mkdir(mode=0o700)
    return runtime_dir / "siwarp" / str(os.getpid())


def test_the_reader_of_a_counter_page_returns_counters_of_a_newer_version(
    own_counter_page_path: Path,
) -> None:
    own_counter_page_path.write_bytes(build_counter_page())
    assert counters.read_counters(os.getpid()) == {"a_new_counter": 11, "tx_msgs": 22}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"magic": b"\0" * 8}, "is incomplete, or from another program"),
        ({"version": 2}, "has version 2"),
        ({"count": 3}, "is incomplete: try again"),
        ({"pid": 1}, "not running"),
        ({"start": 1}, "not running"),
    ],
)
def test_the_reader_refuses_a_counter_page_that_is_invalid_or_of_another_process(
    own_counter_page_path: Path, changes: dict[str, int | bytes], why: str
) -> None:
    own_counter_page_path.write_bytes(build_counter_page(**changes))
    with pytest.raises(counters.CountersError, match=why):
        counters.read_counters(os.getpid())
    assert os.getpid() not in counters.pids_with_readable_counters()


def test_the_reader_refuses_links_pipes_and_truncated_files_as_counter_pages(
    own_counter_page_path: Path,
) -> None:
    other = own_counter_page_path.with_name("real")
    other.write_bytes(build_counter_page())
    own_counter_page_path.symlink_to(other)
    with pytest.raises(counters.CountersError):
        counters.read_counters(os.getpid())
    own_counter_page_path.unlink()
    os.mkfifo(own_counter_page_path)
    with pytest.raises(counters.CountersError, match="not a file"):
        counters.read_counters(os.getpid())
    own_counter_page_path.unlink()
    own_counter_page_path.write_bytes(b"siwcntrs")
    with pytest.raises(counters.CountersError, match="is incomplete: try again"):
        counters.read_counters(os.getpid())


def test_the_reader_of_counter_pages_ignores_directories_that_others_can_write(
    own_counter_page_path: Path,
) -> None:
    own_counter_page_path.write_bytes(build_counter_page())
    own_counter_page_path.parent.chmod(0o770)
    assert own_counter_page_path.parent not in counters.folders_of_counters_pages()
