# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The mount namespace in which a program finds the files of its devices in /sys and /dev.

/sys/class and /dev are each covered by a tmpfs into which all previous entries are bind-mounted, so
the other device classes stay live. Without privileges this needs a user namespace. The namespace
maps the user and the group to themselves, because MPI launchers refuse to run as root. Mounting is
done before the program is executed; execution drops all privileges in the namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from siwarp import _paths
from siwarp.cli import run_sysfs
from siwarp.cli.run_device import Device, query_library_devices, run_in_child_and_read_output

__all__ = ["expose_device_files_to_this_process"]

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_TMPFS = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC

_CLASSES, _NODES = Path("/sys/class"), Path("/dev")
_OURS = ("infiniband", "infiniband_verbs", "misc")

_libc = ctypes.CDLL(None, use_errno=True)


def _raise_if_libc_call_failed(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _call_unshare(flags: int) -> None:
    _raise_if_libc_call_failed(_libc.unshare(flags), "unshare")


def _call_mount(
    source: str, target: Path, kind: str | None, flags: int, data: str | None = None
) -> None:
    _raise_if_libc_call_failed(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount on {target}",
    )


def _write_proc_file(file: Path, line: str) -> None:
    """Write a line to a file in /proc; an error names the file."""
    try:
        file.write_text(line, encoding="ascii")
    except OSError as e:
        raise OSError(e.errno, f"{file}: {e.strerror}") from None


def _enter_new_mount_namespace() -> None:
    """Enter a mount namespace, and a user namespace if that is necessary."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call_unshare(_CLONE_NEWNS)
    except PermissionError:
        _call_unshare(_CLONE_NEWUSER | _CLONE_NEWNS)
        _write_proc_file(Path("/proc/self/setgroups"), "deny")
        _write_proc_file(Path("/proc/self/uid_map"), f"{user} {user} 1")
        _write_proc_file(Path("/proc/self/gid_map"), f"{group} {group} 1")
    # Later mounts outside appear in the namespace, but no mount in the namespace appears outside.
    _call_mount("none", Path("/"), None, _MS_REC | _MS_SLAVE)


def _bind_mount(source: str, target: Path, folder: bool) -> None:
    if folder:
        target.mkdir()
    else:
        target.touch()
    _call_mount(source, target, None, _MS_BIND | _MS_REC)


def _cover_with_tmpfs(place: Path, without: Sequence[str]) -> None:
    """Cover a folder with a tmpfs that holds all previous entries except those in ``without``."""
    old = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = [path.name for path in place.iterdir()]
        entries = [(name, os.lstat(name, dir_fd=old).st_mode) for name in names]
        links = {n: os.readlink(n, dir_fd=old) for n, mode in entries if stat.S_ISLNK(mode)}
        _call_mount("siwarp", place, "tmpfs", _TMPFS, "mode=0755")
        for name, mode in entries:
            if name in without:
                continue
            if name in links:
                (place / name).symlink_to(links[name])
            else:
                _bind_mount(f"/proc/self/fd/{old}/{name}", place / name, stat.S_ISDIR(mode))
    finally:
        os.close(old)


def _write_device_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, line in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{line}\n", encoding="utf-8")
        file.chmod(0o444)


def _link_device_to_interface(device: Path, name: str) -> None:
    """Link a device to its network interface, unless the interface has disappeared.

    If /sys belongs to another network namespace, there is no target for the link, and an empty
    folder with the interface's name is made: programs read only the name.
    """
    folder = device / "net"
    if name and (_CLASSES / "net" / name).exists():
        folder.mkdir()
        (folder / name).symlink_to(f"../../../../net/{name}")
    elif name in (here for _, here in socket.if_nameindex()):
        (folder / name).mkdir(parents=True)


def _mount_sysfs_device_classes(found: Sequence[Device]) -> None:
    misc = _CLASSES / "misc"
    kept = misc.iterdir() if misc.is_dir() else ()
    links = {link.name: str(link.readlink()) for link in kept if link.is_symlink()}
    _cover_with_tmpfs(_CLASSES, _OURS)
    for name, target in links.items():
        misc.mkdir(exist_ok=True)
        (misc / name).symlink_to(target)
    if "rdma_cm" not in links and (_paths.rdma_core_abi_dir() / "librdmacm.so.1").is_file():
        # Only for siwarp's librdmacm: because of this file, the system's own librdmacm would try to
        # use the kernel's rdma_cm.
        _write_device_files(misc / "rdma_cm", run_sysfs.sysfs_rdma_cm_file_contents())
    verbs = _CLASSES / "infiniband_verbs"
    _write_device_files(verbs, run_sysfs.sysfs_uverbs_abi_file_contents())
    for device in found:
        folder = _CLASSES / "infiniband" / device.name
        files = run_sysfs.sysfs_infiniband_files_of_device(device)
        _write_device_files(folder, files)
        _link_device_to_interface(folder / "device", files.get("ports/1/gid_attrs/ndevs/0", ""))
        _write_device_files(verbs / device.dev_name, run_sysfs.sysfs_verbs_file_contents(device))
        (verbs / device.dev_name / "device").symlink_to(f"../../infiniband/{device.name}/device")
    _call_mount("siwarp", _CLASSES, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _TMPFS)


def _bind_null_to_device_nodes(found: Sequence[Device]) -> None:
    """Bind /dev/null to the device nodes; programs check whether they can open those."""
    folder = _NODES / "infiniband"
    ours = [device.dev_name for device in found]
    covered = folder if folder.is_dir() else _NODES
    _cover_with_tmpfs(covered, ours)
    folder.mkdir(exist_ok=True)
    for name in ours:
        _bind_mount("/dev/null", folder / name, folder=False)
    # Only root may create files in the covered folders, as in the original folders.
    folder.chmod(0o555)
    covered.chmod(0o555)


def _expose_device_files(found: Sequence[Device]) -> None:
    _enter_new_mount_namespace()
    _mount_sysfs_device_classes(found)
    _bind_null_to_device_nodes(found)


def _run_in_child(act: Callable[[], None]) -> str:
    """Run a function in a child process; return the text of its error, or an empty string."""

    def run_and_write_error(pipe: int) -> None:
        try:
            act()
        except OSError as e:
            where = f"{e.filename}: " if e.filename else ""
            os.write(pipe, f"{where}{e.strerror or e}".encode())

    return run_in_child_and_read_output(run_and_write_error)


def expose_device_files_to_this_process() -> str | None:
    """Show the device files to this process; return a description of what is missing, or None.

    All steps are tried in a child process first, so that a failure half-way leaves this process
    unchanged.
    """
    nothing = "the program finds no /sys/class/infiniband and /dev/infiniband"
    try:
        found = query_library_devices(_paths.rdma_core_abi_dir() / "libibverbs.so.1")
    except OSError as e:
        return f"{nothing}: {e}"
    refusal = _run_in_child(lambda: _expose_device_files(found))
    if refusal:
        advice = ""
        if refusal.startswith("/proc/self/uid_map") and os.geteuid() == 0:
            # Since Linux 5.12 only a process with CAP_SETFCAP may map user 0.
            advice = (
                " (root needs CAP_SYS_ADMIN or CAP_SETFCAP for this: run the command as another "
                "user)"
            )
        elif refusal.startswith(("unshare", "mount", "/proc/self/")):
            advice = (
                " (this needs CAP_SYS_ADMIN or unprivileged user namespaces, which a container's "
                "seccomp profile, AppArmor or user.max_user_namespaces may forbid)"
            )
        return f"{nothing}: {refusal}{advice}"
    _expose_device_files(found)
    return None
