"""The files in /sys and /dev that siwarp run provides to a program, and those that it leaves as
is.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pace
import pytest
from cli.cli_harness import run_siwarp_command
from cli.install_harness import find_python_for_user, install_package
from harness.siwarp_process import COMMAND, SiwarpProcess
from pace import scale_limit

from siwarp import _paths
from siwarp.cli.run_device import Device, query_library_devices

NOBODY = ["runuser", "-u", "nobody", "--"]
#: The message on standard error if the view of /sys and /dev cannot be created.
NO_VIEW_MESSAGE = "siwarp run: the program finds no /sys/class/infiniband and /dev/infiniband: "

#: Prints what a program sees in a folder: names, kinds, device numbers, and targets of links.
PRINT_FOLDERS = """
import json, os, sys
seen = {}
for folder in sys.argv[1:]:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        s = os.lstat(path)
        kind = s.st_mode >> 12
        seen[path] = [kind, s.st_rdev, os.readlink(path) if os.path.islink(path) else ""]
print(json.dumps(seen))
"""


def run_under_siwarp(*words: object, user: list[str] | None = None, **more: Any) -> str:
    done = pace.run_command(
        [*(user or []), *COMMAND, "run", *map(str, words)],
        capture_output=True,
        text=True,
        seconds=60,
        cwd="/",
        start=SiwarpProcess,
        **more,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def read_folders_as_user(*folders: str, seen_by: list[str]) -> dict[str, Any]:
    done = pace.run_command(
        [*seen_by, sys.executable, "-c", PRINT_FOLDERS, *folders],
        capture_output=True,
        text=True,
        seconds=60,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture(scope="module")
def siwarp_devices() -> list[Device]:
    return query_library_devices(_paths.rdma_core_abi_dir() / "libibverbs.so.1")


@pytest.fixture(scope="module")
def sysfs_class_files(siwarp_devices: list[Device]) -> dict[str, str]:
    """Return the text of every file below siwarp's classes in /sys/class, keyed by path."""
    classes = ["infiniband", "infiniband_verbs", "misc/rdma_cm"]
    code = (
        "import json, pathlib, sys\n"
        "print(json.dumps({str(f): f.read_text() for c in sys.argv[1:]\n"
        "  for f in pathlib.Path('/sys/class', c).rglob('*') if f.is_file()}))\n"
    )
    said: dict[str, str] = json.loads(run_under_siwarp("--", sys.executable, "-c", code, *classes))
    return said


def test_each_device_has_the_sysfs_files_of_an_rdma_device(
    siwarp_devices: list[Device], sysfs_class_files: dict[str, str]
) -> None:
    assert siwarp_devices
    for device in siwarp_devices:
        at = f"/sys/class/infiniband/{device.name}"
        assert sysfs_class_files[f"{at}/node_type"] in ("1: CA\n", "4: RNIC\n")
        for guid in ("node_guid", "sys_image_guid"):
            assert [len(part) for part in sysfs_class_files[f"{at}/{guid}"].strip().split(":")] == [
                4
            ] * 4
        assert sysfs_class_files[f"{at}/fw_ver"].strip() == device.fw_ver
        assert sysfs_class_files[f"{at}/hca_type"] == "siwarp\n"
        int(sysfs_class_files[f"{at}/device/numa_node"])
        port = f"{at}/ports/1"
        assert sysfs_class_files[f"{port}/state"] in ("4: ACTIVE\n", "1: DOWN\n")
        assert sysfs_class_files[f"{port}/phys_state"].split(": ")[0].isdigit()
        assert sysfs_class_files[f"{port}/link_layer"] == "Ethernet\n"
        assert "Gb/sec (" in sysfs_class_files[f"{port}/rate"]
        assert sysfs_class_files[f"{port}/lid"].startswith("0x")
        assert sysfs_class_files[f"{port}/pkeys/0"] == "0xffff\n"


def test_each_gid_has_sysfs_files_for_its_interface_and_its_type(
    siwarp_devices: list[Device], sysfs_class_files: dict[str, str]
) -> None:
    for device in siwarp_devices:
        port = f"/sys/class/infiniband/{device.name}/ports/1"
        assert device.gids, f"{device.name} has no GID"
        for gid in device.gids:
            text = sysfs_class_files[f"{port}/gids/{gid.index}"].strip()
            assert text.replace(":", "") == gid.gid
            assert text.count(":") == 7
            assert sysfs_class_files[f"{port}/gid_attrs/types/{gid.index}"] == "RoCE v2\n"
            ndev = sysfs_class_files[f"{port}/gid_attrs/ndevs/{gid.index}"].strip()
            assert Path("/sys/class/net", ndev).exists()
            assert device.name == f"siw_{ndev}"


def test_each_device_has_a_uverbs_class_entry_and_a_device_node(
    siwarp_devices: list[Device], sysfs_class_files: dict[str, str]
) -> None:
    assert sysfs_class_files["/sys/class/infiniband_verbs/abi_version"] == "6\n"
    if (_paths.rdma_core_abi_dir() / "librdmacm.so.1").is_file():
        assert sysfs_class_files["/sys/class/misc/rdma_cm/abi_version"] == "4\n"
    else:  # with such files, the system's own librdmacm would try to use the kernel's rdma_cm
        assert not [file for file in sysfs_class_files if "rdma_cm" in file]
    nodes = read_folders_as_user("/dev/infiniband", seen_by=[*COMMAND, "run"])
    for device in siwarp_devices:
        assert (
            sysfs_class_files[f"/sys/class/infiniband_verbs/{device.dev_name}/ibdev"].strip()
            == device.name
        )
        assert (
            sysfs_class_files[f"/sys/class/infiniband_verbs/{device.dev_name}/abi_version"] == "1\n"
        )
        kind, number, _ = nodes[f"/dev/infiniband/{device.dev_name}"]
        assert kind << 12 == stat.S_IFCHR
        dev = sysfs_class_files[f"/sys/class/infiniband_verbs/{device.dev_name}/dev"].strip()
        assert dev == f"{os.major(number)}:{os.minor(number)}"
    assert "/dev/infiniband/rdma_cm" not in nodes or Path("/dev/infiniband/rdma_cm").exists()
    tries = " && ".join(f"exec 3<>/dev/infiniband/{device.dev_name}" for device in siwarp_devices)
    assert run_under_siwarp("sh", "-c", f"{tries} && echo opened") == "opened\n"


def test_all_other_files_of_sys_and_dev_remain_those_of_the_kernel() -> None:
    folders = ["/sys/class", "/sys/class/net", "/sys/class/misc", "/dev"]
    before = read_folders_as_user(*folders, seen_by=[])
    after = read_folders_as_user(*folders, seen_by=[*COMMAND, "run"])
    assert {path: seen for path, seen in after.items() if path in before} == before
    new = {path.rpartition("/")[2] for path in after.keys() - before.keys()}
    assert new <= {"infiniband", "infiniband_verbs", "misc", "rdma_cm"}
    # The file systems of the kernel itself are mounted, not copies of their files.
    for folder in ("/sys/class/net", "/dev/pts", "/dev/shm"):
        numbers = run_under_siwarp("stat", "-c", "%d:%i", folder)
        there = Path(folder).stat()
        assert numbers.strip() == f"{there.st_dev}:{there.st_ino}"


def test_the_view_of_siwarp_run_is_not_visible_to_other_processes() -> None:
    with SiwarpProcess(
        [*COMMAND, "run", "sh", "-c", "ls /sys/class/infiniband; echo there; read -r _"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        while process.stdout.readline() != "there\n":
            pass
        mounts = Path("/proc/self/mounts").read_text()
        assert not [line for line in mounts.splitlines() if line.startswith("siwarp ")]
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(timeout=scale_limit(20)) == 0


def test_the_classes_in_sysfs_remain_read_only() -> None:
    done = run_siwarp_command(
        "run", "sh", "-c", "echo x >/sys/class/new; echo x >/sys/class/infiniband/new"
    )
    assert done.returncode != 0
    assert done.stderr.count("Read-only file system") == 2


def test_nested_siwarp_run_shows_each_device_once(siwarp_devices: list[Device]) -> None:
    nested = run_under_siwarp(
        "--", *COMMAND, "run", "sh", "-c", "ls /dev/infiniband /sys/class/infiniband"
    )
    for device in siwarp_devices:
        assert device.name in nested and device.dev_name in nested


def test_siwarp_run_shows_the_devices_of_the_network_namespace() -> None:
    made = "ip link add lonely0 type veth peer name lonely1; ip addr add 192.0.2.1/24 dev lonely0\n"
    made += "ip addr add 192.0.2.2/24 dev lonely1\n"
    made += "for one in lo lonely0 lonely1; do ip link set $one up; done\n"
    # /sys belongs to the outer network namespace and has no interfaces with these names.
    show = "cd /sys/class/infiniband; echo */device/net/*; ls -A siw_lonely0/device/net/lonely0"
    done = pace.run_command(
        ["unshare", "-rn", "sh", "-ec", f'{made}exec "$@"', "sh",
         *COMMAND, "run", "sh", "-c", show],
        capture_output=True, text=True, seconds=30,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )  # fmt: skip
    names = "siw_lo/device/net/lo siw_lonely0/device/net/lonely0 siw_lonely1/device/net/lonely1\n"
    assert (done.stdout, done.stderr) == (names, "")


def test_interfaces_whose_long_names_differ_only_at_the_end_are_separate_devices() -> None:
    names = ["enx00e04c680001", "enx00e04c680002"]
    made = f"ip link add {names[0]} type veth peer name {names[1]}\n" + "\n".join(
        f"ip addr add 192.0.2.{i}/24 dev {name}; ip link set {name} up"
        for i, name in enumerate(names, 1)
    )
    done = pace.run_command(
        ["unshare", "-rn", "sh", "-ec", f'{made}\nexec "$@"', "sh",
         *COMMAND, "run", "ls", "/sys/class/infiniband"],
        capture_output=True, text=True, seconds=30,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == ([f"siw_{name}" for name in names], "")


# ---- for ordinary users, and for root in a container


@pytest.fixture(scope="module")
def command_line_of_siwarp_run_as_nobody(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[str]]:
    """Yield the command line of ``siwarp run`` from an installed package, as user nobody."""
    site = install_package(tmp_path_factory.mktemp("site"))
    python = find_python_for_user(NOBODY)
    yield [*NOBODY, "env", f"PYTHONPATH={site}", python, "-m", "siwarp.cli", "run"]


@pytest.mark.root
def test_an_ordinary_user_gets_the_view_and_keeps_the_user_id(
    command_line_of_siwarp_run_as_nobody: list[str],
) -> None:
    script = (
        "id -u; id -g; ls /sys/class/infiniband; for d in /dev/infiniband/*; do exec 3<>$d; done; "
        "grep CapEff /proc/self/status; cat /proc/self/uid_map; touch /dev/new"
    )
    done = pace.run_command(
        [*command_line_of_siwarp_run_as_nobody, "sh", "-c", script],
        capture_output=True,
        text=True,
        cwd="/",
        seconds=30,
    )
    uid, gid, *names = done.stdout.split()
    alone = subprocess.run([*NOBODY, "id", "-g"], capture_output=True, text=True, check=True)
    assert (uid, gid) == ("65534", alone.stdout.strip())
    assert "siw_lo" in names
    assert names[-5:] == ["CapEff:", "0" * 16, "65534", "65534", "1"]
    assert "Permission denied" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.root
def test_siwarp_run_as_root_creates_only_a_mount_namespace() -> None:
    spaces = [Path("/proc/self/ns", name) for name in ("mnt", "user", "net", "pid")]
    inside = run_under_siwarp("--", "readlink", *spaces).split()
    changed = [a != str(b.readlink()) for a, b in zip(inside, spaces, strict=True)]
    assert changed == [True, False, False, False]


def test_siwarp_run_as_root_without_cap_sys_admin_uses_a_user_namespace() -> None:
    done = pace.run_command(
        ["setpriv", "--bounding-set=-sys_admin", *COMMAND,
         "run", "sh", "-c", "id -u; ls /sys/class/infiniband"],
        capture_output=True, text=True, seconds=30,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split()[0] == str(os.geteuid())
    assert "siw_lo" in done.stdout.split()


#: Denies unshare() to itself and its children, as the seccomp profile of a container does.
SECCOMP = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
code = b"".join(struct.pack("HBBI", *row) for row in [
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)])
buffer = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""

NO_NAMESPACES = (
    "echo 0 >/proc/sys/user/max_user_namespaces; "
    'exec setpriv --bounding-set=-sys_admin --inh-caps=-all "$@"'
)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("Operation not permitted", [sys.executable, "-c", SECCOMP]),
        ("No space left on device", ["unshare", "-r", "sh", "-c", NO_NAMESPACES, "sh"]),
    ],
    ids=["seccomp", "max_user_namespaces"],
)
def test_siwarp_run_reports_refused_namespaces_and_runs_the_program(
    refusal: str, words: list[str]
) -> None:
    done = pace.run_command(
        [*words, *COMMAND, "run", "sh", "-c", "echo went on; exit 6"],
        capture_output=True,
        text=True,
        seconds=30,
    )
    assert (done.stdout, done.returncode) == ("went on\n", 6)
    assert done.stderr.startswith(
        f"{NO_VIEW_MESSAGE}unshare: {refusal} (this needs CAP_SYS_ADMIN or "
    )
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.root
def test_siwarp_run_as_root_without_capabilities_recommends_another_user() -> None:
    done = pace.run_command(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all",
         *COMMAND, "run", "sh", "-c", "echo went on; exit 6"],
        capture_output=True, text=True, seconds=30,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("went on\n", 6)
    assert re.fullmatch(
        re.escape(NO_VIEW_MESSAGE)
        + r"/proc/self/uid_map: Operation not permitted \(.*another user.*\)\n",
        done.stderr,
    )


def test_a_libibverbs_that_cannot_be_loaded_is_named_in_the_error(tmp_path: Path) -> None:
    broken = tmp_path / "libibverbs.so.1"
    broken.write_bytes(b"no library")
    with pytest.raises(OSError, match=r"invalid ELF header|too short"):
        query_library_devices(broken)
