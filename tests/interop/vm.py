#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A QEMU guest that runs Linux siw: an iWARP peer that was written outside this project.

Kernel, tools and siw all come from the Debian archive. Debian leaves CONFIG_RDMA_SIW unset, so
siw.ko is built from linux-source against the matching headers; its constants (CRC, peer-to-peer
mode, MPA revision, ...) become module parameters with unchanged defaults, and nothing else is
changed.

    vm.py build         build kernel and initramfs in the cache, unless they exist
    vm.py boot          boot, print the host ports, run until interrupted
    vm.py exec CMD...   boot, run a shell command in the guest, power off; the command's status

The guest is 10.0.2.15 and reaches the host's loopback as 10.0.2.2 (QEMU user networking, which
terminates TCP: octet streams pass, segment boundaries do not). It has no route to other hosts. Exit
status 2 with one line of advice if the machine lacks something.

Environment: XDG_CACHE_HOME; INTEROP_ACCEL=kvm|tcg (default: KVM if a guest boots with it).
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import hashlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent

#: The tools that the host needs: file to look for -> package that contains the file.
HOST_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "rping": "rdmacm-utils",
    "gcc-12": "gcc-12",
    "make": "make",
    "xz": "xz-utils",
    "/usr/include/stdlib.h": "libc6-dev",
    "/usr/lib/x86_64-linux-gnu/libelf.so.1": "libelf1",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3": "libssl3",
}
#: The part of HOST_TOOLS that is needed after the image was built.
RUN_TOOLS = {tool: HOST_TOOLS[tool] for tool in ("qemu-system-x86_64", "rping")}
#: The packages installed in the guest; their development packages are used to build guest/echo.c.
GUEST_PACKAGES = [
    *("busybox-static", "libc6", "libgcc-s1"),
    *("iproute2", "libmnl0", "libbsd0", "libmd0", "libcap2"),
    *("rdmacm-utils", "librdmacm1", "libibverbs1", "ibverbs-providers"),
    *("libnl-3-200", "libnl-route-3-200"),
]
DEVELOPMENT_PACKAGES = ["libibverbs-dev", "librdmacm-dev"]
GUEST_FILES = re.compile(
    r"bin/busybox$|(usr/)?s?bin/rdma$|usr/bin/rping$|lib64/ld-linux-x86-64\.so\.2$"
    r"|(usr/)?lib/x86_64-linux-gnu/[^/]*\.so[^/]*$|usr/lib/x86_64-linux-gnu/libibverbs/libsiw"
    r"|etc/libibverbs\.d/siw\.driver$"
)
GUEST_MODULES = ["virtio_pci", "virtio_net", "crc32c_generic", "libcrc32c", "ib_uverbs", "rdma_ucm"]

#: siw constants that become parameters: name -> (type, file that defines the constant).
SIW_PARAMETERS = {
    "mpa_crc_required": ("bool", "siw_main.c"),
    "mpa_crc_strict": ("bool", "siw_main.c"),
    "peer_to_peer": ("bool", "siw_main.c"),
    "mpa_version": ("byte", "siw_main.c"),
    "siw_tcp_nagle": ("bool", "siw_main.c"),
    "rtr_type": ("ushort", "siw_cm.c"),
}
#: Values of rtr_type: the C and D bits of RFC 6581, big endian in 16 bits of a little endian CPU.
RTR_WRITE, RTR_READ = 0x0080, 0x0040

AGENT_PORT = 7171  # TCP port of the agent in the guest
GUEST_ADDRESS, HOST_ADDRESS = "10.0.2.15", "10.0.2.2"
LIFE_S = 1800  # the guest powers itself off after this number of seconds
BOOT_S, KVM_BOOT_S = 300.0, 8.0
EXIT_MARK = b"\ninterop-exit "


class Unavailable(Exception):
    """This machine cannot run the guest; the text of the exception advises the user."""


class GuestError(Exception):
    """The guest did not boot, or a command in the guest failed."""


def report_progress(text: str) -> None:
    """Print a line about the progress of the build or boot on standard error."""
    print(f"interop: {text}", file=sys.stderr, flush=True)


def cache_directory() -> Path:
    """Return the folder of built images and state."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "siwarp" / "interop"


# ----------------------------------------------------------------- packages


def root_command_prefix() -> list[str] | None:
    """Return the prefix for a command that needs root; None if root needs a password."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def run_apt(*args: str, cwd: Path | None = None) -> None:
    """Run apt-get quietly; raise subprocess.CalledProcessError with its output on failure."""
    prefix = [] if args[0] == "download" else root_command_prefix() or []
    subprocess.run(
        [*prefix, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", *args],
        cwd=cwd, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
    )  # fmt: skip


def run_apt_with_retries(*args: str, advice: str, cwd: Path | None = None) -> None:
    """Run apt-get up to three times, refreshing the package lists in between.

    Raise Unavailable with the message of apt on the package that failed, and the advice.
    """
    output = ""
    for attempt in range(3):
        try:
            if attempt:
                time.sleep(2 * attempt)
                run_apt("update")
            run_apt(*args, cwd=cwd)
            return
        except subprocess.CalledProcessError as error:
            output = str(error.stdout).strip()
    said = [line for line in output.splitlines() if line.startswith("E:")] or [output[-200:]]
    raise Unavailable(f"apt-get {args[0]} failed ({said[0]}); type: {advice}")


def install_host_tools(tools: dict[str, str]) -> None:
    """Install missing packages; if impossible, raise Unavailable with a command to type."""
    missing = [p for t, p in tools.items() if not (shutil.which(t) or Path(t).is_file())]
    if not missing:
        return
    sudo = "" if os.geteuid() == 0 else "sudo "
    advice = f"{sudo}apt-get install --no-install-recommends {' '.join(missing)}"
    if not shutil.which("apt-get") or root_command_prefix() is None:
        raise Unavailable(f"missing: {' '.join(missing)}; type: {advice}")
    report_progress(f"installing {' '.join(missing)}")
    run_apt_with_retries("install", "-y", "--no-install-recommends", *missing, advice=advice)


def host_package_versions() -> str:
    """Return names and versions of the host packages whose programs the tests run."""
    show = ["dpkg-query", "-W", "-f", "${Package} ${Version}, ", *RUN_TOOLS.values()]
    done = subprocess.run(show, capture_output=True, text=True, check=False)
    return done.stdout.rstrip(", ")


def apt_candidate_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions that apt would download, by package; unknown packages are left out."""
    text = subprocess.run(
        ["apt-cache", "policy", *names], check=True, capture_output=True, text=True,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout  # fmt: skip
    found = re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (\S+)", text, re.M)
    return {name: version for name, version in found if version != "(none)"}


def guest_kernel_release() -> str:
    """Return the kernel release that linux-image-amd64 depends on, such as 6.1.0-40-amd64."""
    text = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = re.search(r"Depends: linux-image-(\S+)", text)
    if not found:
        raise LookupError("linux-image-amd64")
    return found.group(1)


def guest_kernel_packages(release: str) -> dict[str, str]:
    """Return the names of the kernel's packages by their role in the build."""
    series = ".".join(release.split(".")[:2])
    return {
        "image": f"linux-image-{release}",
        "headers": f"linux-headers-{release}",
        "common": f"linux-headers-{release.removesuffix('-amd64')}-common",
        "kbuild": f"linux-kbuild-{series}",
        "source": f"linux-source-{series}",
    }


def resolve_package_versions() -> tuple[str, dict[str, str]]:
    """Return the kernel release and the version of every package to download, or raise
    Unavailable.
    """
    if not shutil.which("apt-get"):
        raise Unavailable("the guest is made of Debian packages: run this on Debian 12 (apt-get)")
    missing = ["linux-image-amd64"]
    for attempt in range(3):
        if attempt:
            with contextlib.suppress(subprocess.CalledProcessError):
                time.sleep(2 * (attempt - 1))
                run_apt("update")
        try:
            release = guest_kernel_release()
        except LookupError:
            continue
        names = [*guest_kernel_packages(release).values(), *GUEST_PACKAGES, *DEVELOPMENT_PACKAGES]
        versions = apt_candidate_versions(names)
        missing = [name for name in names if name not in versions]
        if not missing:
            return release, versions
    raise Unavailable(f"apt does not know {' '.join(missing)}; type: sudo apt-get update")


# -------------------------------------------------------------------- build


def matching_package_files(
    deb: Path, wanted: re.Pattern[str]
) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield files and links of a package whose names (without ./) match, with their contents."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as unpacker:
        assert unpacker.stdout is not None
        with tarfile.open(fileobj=unpacker.stdout, mode="r|") as archive:
            for info in archive:
                info.name = info.name.removeprefix("./")
                if wanted.match(info.name) and (info.isfile() or info.issym()):
                    content = archive.extractfile(info) if info.isfile() else None
                    yield info, content.read() if content else b""
    if unpacker.returncode:
        raise GuestError(f"dpkg-deb could not read {deb.name}")


class Initramfs:
    """A newc cpio archive under construction, in which root owns all files."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        self.seen: set[str] = set()

    def _write_entry(self, name: str, mode: int, data: bytes = b"") -> None:
        raw = name.encode() + b"\0"
        fields = (len(self.seen), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        self.out.write(b"070701" + b"".join(b"%08X" % f for f in fields) + raw)
        self.out.write(b"\0" * (-self.out.tell() % 4) + data)
        self.out.write(b"\0" * (-self.out.tell() % 4))

    def add_entry(self, name: str, mode: int, data: bytes) -> None:
        """Add a file or link (mode with its type bits) and its parent folders, each only once."""
        parents = Path(name).parents
        for folder in [str(p) for p in reversed(parents)][1:]:
            if folder not in self.seen:
                self.seen.add(folder)
                self._write_entry(folder, 0o040755)
        if name not in self.seen:
            self.seen.add(name)
            self._write_entry(name, mode, data)

    def add_file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Add a regular file to the archive."""
        self.add_entry(name, 0o100000 | mode, data)

    def add_link(self, name: str, target: str) -> None:
        """Add a symbolic link to the archive."""
        self.add_entry(name, 0o120777, target.encode())

    def finish(self) -> bytes:
        """Return the finished archive."""
        self._write_entry("TRAILER!!!", 0)
        return self.out.getvalue()


def unpack_package(deb: Path, into: Path) -> None:
    """Unpack a complete Debian package into a folder."""
    subprocess.run(["dpkg-deb", "-x", deb, into], check=True)


def extract_siw_driver_with_parameters(deb: Path, series: str, work: Path) -> Path:
    """Return siw's folder from linux-source, with its constants turned into module parameters."""
    folder = f"linux-source-{series}/drivers/infiniband/sw/siw"
    # The option --occurrence stops tar early, so the preceding commands of the pipe end by SIGPIPE.
    script = (
        'dpkg-deb --fsys-tarfile "$1" 2>/dev/null | tar -xO "./usr/src/linux-source-$2.tar.xz" '
        '2>/dev/null | xz -dcT2 2>/dev/null | tar -x --occurrence=1 "$3"'
    )
    subprocess.run(["sh", "-c", script, "sh", deb, series, folder], cwd=work, check=True)
    siw = work / folder
    sources = {path: path.read_text() for path in siw.glob("*.[ch]")}
    for path in sources:
        sources[path] = re.sub(
            r"^((?:extern |static )?)const bool ", r"\1bool ", sources[path], flags=re.M
        )
    for name, (kind, file) in SIW_PARAMETERS.items():
        if not re.search(rf"^(static )?(bool|u_char|__be16) {name}\b", sources[siw / file], re.M):
            raise GuestError(f"siw's {file} has no constant {name} any more")
        sources[siw / file] += f"module_param({name}, {kind}, 0644);\n"
    for path, text in sources.items():
        path.write_text(text)
    return siw


def build_siw_module(debs: dict[str, Path], release: str, work: Path) -> bytes:
    """Compile siw.ko against the headers of this kernel, and return its octets."""
    series = ".".join(release.split(".")[:2])
    with ThreadPoolExecutor(2) as pool:
        source = pool.submit(extract_siw_driver_with_parameters, debs["source"], series, work)
        for role in ("headers", "common", "kbuild"):
            unpack_package(debs[role], work / "headers")
        siw = source.result()
    headers = work / "headers" / "usr/src" / f"linux-headers-{release}"
    makefile = headers / "Makefile"  # the makefile has one include line with an absolute path
    makefile.write_text(makefile.read_text().replace("/usr/src", str(headers.parent)))
    done = subprocess.run(
        ["make", "-s", "-j2", "-C", headers, f"M={siw}", "CONFIG_RDMA_SIW=m", "modules"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))},
    )  # fmt: skip
    if done.returncode:
        raise GuestError(f"siw.ko did not build:\n{done.stdout[-3000:]}")
    return (siw / "siw.ko").read_bytes()


def build_echo_server(debs: Sequence[Path], work: Path) -> bytes:
    """Compile guest/echo.c, the verbs server of the guest, and return the program."""
    root, program = work / "development", work / "interop-echo"
    for deb in debs:
        unpack_package(deb, root)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    command: list[str | Path] = [
        "gcc-12", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{root}/usr/include", "-o", program,
        HERE / "guest/echo.c", f"-L{libraries}", "-Wl,--allow-shlib-undefined",
        "-lrdmacm", "-libverbs",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return program.read_bytes()


def extract_kernel_and_modules(image: Path) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the kernel, and the modules that the guest loads, ordered by their dependencies."""
    wanted = re.compile(
        r"boot/vmlinuz-|lib/modules/[^/]+/(modules\.builtin$|kernel/(arch/x86/crypto|crypto|lib|fs"
        r"|net/core|drivers/(virtio|infiniband/core|net/virtio_net|net/net_failover))[./])"
    )
    kernel, files, builtin = b"", {}, set[str]()
    for info, data in matching_package_files(image, wanted):
        name = Path(info.name).name
        if name.startswith("vmlinuz"):
            kernel = data
        elif name == "modules.builtin":
            builtin = {Path(line).stem.replace("-", "_") for line in data.decode().splitlines()}
        elif name.endswith(".ko"):
            files[name.removesuffix(".ko").replace("-", "_")] = data
    order: list[str] = []

    def add_kernel_module_and_its_dependencies(module: str) -> None:
        if module in order or module in builtin:
            return
        if module not in files:
            raise GuestError(f"the kernel package has no module {module}")
        depends = re.search(rb"\0depends=([^\0]*)\0", files[module])
        for need in (depends.group(1).decode() if depends else "").split(","):
            if need:
                add_kernel_module_and_its_dependencies(need.replace("-", "_"))
        order.append(module)

    for module in [*GUEST_MODULES, "iw_cm"]:
        add_kernel_module_and_its_dependencies(module)
    return kernel, [(module, files[module]) for module in order]


def read_guest_files(debs: Sequence[Path]) -> Iterator[tuple[str, int, bytes]]:
    """Yield name, mode and content of the guest's programs and libraries, with a merged /usr."""
    for deb in debs:
        for info, data in matching_package_files(deb, GUEST_FILES):
            name = info.name if info.name.startswith(("usr/", "etc/")) else f"usr/{info.name}"
            name = name.replace("usr/sbin/", "usr/bin/")
            if info.issym():
                yield name, 0o120777, info.linkname.encode()
            else:
                yield name, 0o100000 | info.mode, data


def build_guest_image(release: str, versions: dict[str, str], into: Path) -> None:
    """Download and compile the guest, and store vmlinuz, initramfs and version in a folder."""
    started = time.monotonic()
    # The path is short and has no spaces, because the makefiles of the kernel do not support
    # spaces.
    with tempfile.TemporaryDirectory(prefix="siwarp-interop-", dir="/tmp") as name:
        work = Path(name)
        store = work / "debs"
        store.mkdir()
        packages = [f"{package}={version}" for package, version in versions.items()]
        report_progress(f"downloading Debian's kernel {release} and {len(packages)} packages")
        run_apt_with_retries("download", *packages, advice="sudo apt-get update", cwd=store)
        by_name = {path.name.split("_")[0]: path for path in store.glob("*.deb")}
        debs = {role: by_name[package] for role, package in guest_kernel_packages(release).items()}
        report_progress(
            f"building siw.ko and the guest ({time.monotonic() - started:.0f} s so far)"
        )
        with ThreadPoolExecutor(2) as pool:
            siw = pool.submit(build_siw_module, debs, release, work)
            kernel, modules = extract_kernel_and_modules(debs["image"])
            archive = Initramfs()
            for folder in ("bin", "sbin"):
                archive.add_link(folder, "usr/bin")
            for folder in ("lib", "lib64"):
                archive.add_link(folder, f"usr/{folder}")
            for path, mode, data in read_guest_files([by_name[p] for p in GUEST_PACKAGES]):
                archive.add_entry(path, mode, data)
            libraries = [p for p in by_name if p.startswith(("libibverbs", "librdmacm"))]
            echo = build_echo_server([by_name[p] for p in libraries], work)
            archive.add_file("usr/bin/interop-echo", echo, 0o755)
            for script in ("init", "agent"):
                archive.add_file(script, (HERE / "guest" / script).read_bytes(), 0o755)
            modules.append(("siw", siw.result()))
        archive.add_file("modules/order", "".join(f"{m}.ko\n" for m, _ in modules).encode())
        for module, data in modules:
            archive.add_file(f"modules/{module}.ko", data)
        (into / "vmlinuz").write_bytes(kernel)
        (into / "initramfs").write_bytes(archive.finish())
        (into / "version").write_text(versions[f"linux-image-{release}"] + "\n")
    report_progress(f"built in {time.monotonic() - started:.0f} s")


def hash_of_image_inputs(versions: dict[str, str]) -> str:
    """Return a hash of everything that determines the image: the scripts and all package
    versions.
    """
    digest = hashlib.sha256(repr(sorted(versions.items())).encode())
    for path in [Path(__file__), *sorted((HERE / "guest").iterdir())]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def hold_file_lock(path: Path) -> Iterator[IO[str]]:
    """Hold an exclusive lock on a file for the duration of the block."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def get_or_build_guest_image() -> Path:
    """Return the folder with vmlinuz, initramfs and version; build the image if the cache lacks it.

    Raise Unavailable if this machine lacks root or a package for the build, GuestError if
    compilation fails.
    """
    release, versions = resolve_package_versions()
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    image = cache / hash_of_image_inputs(versions)
    with hold_file_lock(cache / "lock"):
        if image.is_dir():
            install_host_tools(RUN_TOOLS)
            return image
        install_host_tools(HOST_TOOLS)
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=cache))
        try:
            build_guest_image(release, versions, fresh)
            for old in cache.iterdir():
                if old.is_dir() and old != fresh:
                    shutil.rmtree(old, ignore_errors=True)
            fresh.rename(image)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return image


# ---------------------------------------------------------------------- run


def request_kill_when_parent_ends() -> None:
    """In a child process before exec, ask the kernel to kill the process when the parent's thread
    ends (PR_SET_PDEATHSIG).
    """
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)


def list_free_tcp_ports(count: int) -> list[int]:
    """Return TCP ports of 127.0.0.1 that are currently free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


#: Messages that the Linux kernel prints on the console when it has failed.
KERNEL_FAULT = re.compile(
    r"^.*(kernel BUG at|\bBUG: |Oops: |general protection fault|Kernel panic|stack segment:).*$",
    re.M,
)


def find_kernel_fault(console: str) -> str:
    """Return the first console line that reports a kernel fault, or an empty string."""
    found = KERNEL_FAULT.search(console)
    return found[0].strip() if found else ""


class Guest:
    """A running guest VM; a context manager.

    ``forward`` names TCP ports of the guest; ``host_port(p)`` is the port of 127.0.0.1 that is
    forwarded to guest port p.
    """

    def __init__(self, image: Path, forward: Sequence[int] = (7174, 7175)) -> None:
        self.version = (image / "version").read_text().strip()
        self.state = Path(tempfile.mkdtemp(prefix="siwarp-interop-"))
        self.console = self.state / "console"
        self.forward = (AGENT_PORT, *forward)
        self.accelerator = ""
        self.qemu: subprocess.Popen[bytes] | None = None
        self.ports: dict[int, int] = {}
        self._parameters: dict[str, int] = {}  # the module parameters of siw, as last set
        try:
            self._boot(image)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def host_port(self, guest_port: int) -> int:
        """Return the port of 127.0.0.1 that is forwarded to a guest port."""
        return self.ports[guest_port]

    def _boot(self, image: Path) -> None:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The file holds the boot id of the host, so that KVM is tried once per boot.
        broken = image / "kvm-does-not-boot"
        wanted = os.environ.get("INTEROP_ACCEL")
        kvm = wanted != "tcg" and os.access("/dev/kvm", os.R_OK | os.W_OK)
        if kvm and not wanted and broken.exists() and broken.read_text() == boot_id:
            kvm = False
        if kvm:
            if self._start_qemu(image, "kvm", KVM_BOOT_S):
                return
            with contextlib.suppress(OSError):
                broken.write_text(boot_id)
            report_progress("no guest boots on this machine's KVM; emulating instead")
        if wanted == "kvm":
            raise GuestError("INTEROP_ACCEL=kvm, but no guest boots on KVM here")
        if not self._start_qemu(image, "tcg,thread=multi", BOOT_S):
            tail = self.console.read_text(errors="replace")[-2000:]
            raise GuestError(f"the guest did not come up:\n{self._qemu_log()}{tail}")

    def _qemu_log(self) -> str:
        return (self.state / "qemu.log").read_text(errors="replace")

    def _start_qemu(self, image: Path, accelerator: str, seconds: float) -> bool:
        """Start QEMU and wait until the guest is ready; on failure, stop QEMU."""
        self.ports = dict(zip(self.forward, list_free_tcp_ports(len(self.forward)), strict=True))
        network = "user,id=n0,ipv6=off" + "".join(
            f",hostfwd=tcp:127.0.0.1:{mine}-{GUEST_ADDRESS}:{theirs}"
            for theirs, mine in self.ports.items()
        )
        command = [
            "qemu-system-x86_64", "-accel", accelerator, "-smp", "2", "-m", "384", "-no-reboot",
            "-cpu", "host" if accelerator == "kvm" else "Nehalem",
            "-nodefaults", "-no-user-config", "-display", "none",
            "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initramfs"),
            "-append", f"console=ttyS0 quiet panic=-1 mitigations=off interop.life={LIFE_S}",
            "-serial", f"file:{self.console}", "-netdev", network,
            "-device", "virtio-net-pci,netdev=n0,romfile=",
        ]  # fmt: skip
        self.console.write_text("")
        with (self.state / "qemu.log").open("wb") as log:
            self.qemu = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=request_kill_when_parent_ends, start_new_session=True,
            )  # fmt: skip
        started = time.monotonic()
        while time.monotonic() - started < seconds and self.qemu.poll() is None:
            if "interop: ready" in self.console.read_text(errors="replace"):
                self.accelerator = accelerator.split(",")[0]
                took = time.monotonic() - started
                report_progress(
                    f"siw of Linux {self.version} is up in {took:.1f} s ({self.accelerator})"
                )
                return True
            time.sleep(0.05)
        self._stop_qemu()
        return False

    def _stop_qemu(self) -> None:
        if self.qemu is not None:
            self.qemu.kill()
            self.qemu.wait()
            self.qemu = None

    def close(self) -> None:
        """Power the guest off immediately and remove its files."""
        self._stop_qemu()
        shutil.rmtree(self.state, ignore_errors=True)

    def run_command(self, command: str, timeout: float = 30.0) -> tuple[int, str]:
        """Run a shell command in the guest; return its exit status (143 after a time-out) and
        output.

        Raise GuestError if the guest does not answer within ``timeout`` seconds plus a margin.
        """
        request = f"{int(timeout) or 1} {base64.b64encode(command.encode()).decode()}\n"
        reply = b""
        try:
            address = ("127.0.0.1", self.ports[AGENT_PORT])
            with socket.create_connection(address, timeout=timeout + 10) as agent:
                agent.sendall(request.encode())
                while part := agent.recv(65536):
                    reply += part
        except OSError as error:
            raise GuestError(f"the guest does not answer: {error}") from error
        output, mark, status = reply.rpartition(EXIT_MARK)
        if not mark:
            raise GuestError(f"the guest hung up during {command!r}")
        return int(status), output.decode(errors="replace")

    def run_checked_command(self, command: str, timeout: float = 30.0) -> str:
        """Run a command in the guest and return its output; raise GuestError if its status is not
        zero.
        """
        status, output = self.run_command(command, timeout)
        if status:
            raise GuestError(f"status {status} from {command!r} in the guest:\n{output}")
        return output

    def set_siw_parameters(self, **parameters: int) -> None:
        """Set siw's parameters for future connections; parameters that are not named get their
        defaults.
        """
        values = dict.fromkeys(SIW_PARAMETERS, 0)
        values |= {"mpa_version": 2, "rtr_type": RTR_WRITE | RTR_READ}
        if unknown := parameters.keys() - values.keys():
            raise ValueError(f"siw has no parameter {sorted(unknown)}")
        values |= parameters
        if values == self._parameters:
            return
        self._parameters = values
        self.run_checked_command(
            "cd /sys/module/siw/parameters && "
            + " && ".join(f"echo {value} >{name}" for name, value in values.items())
        )

    def start_server(self, port: int, command: str) -> None:
        """Start a server in the guest's background, and wait until siw listens on its port.

        An earlier server on that port is stopped first; the output is written to /tmp/PORT.log.
        """
        pid, log = f"/tmp/{port}.pid", f"/tmp/{port}.log"
        self.run_checked_command(
            f"[ ! -e {pid} ] || kill $(cat {pid}) 2>/dev/null; "
            f"n=0; while netstat -ltn | grep -q ':{port} '; do n=$((n+1)); "
            f"[ $n -lt 50 ] || exit 1; sleep 0.1; done; "
            f"{{ exec {command}; }} >{log} 2>&1 & echo $! >{pid}; "
            f"n=0; until netstat -ltn | grep -q ':{port} '; do n=$((n+1)); "
            f"[ $n -lt 100 ] && kill -0 $! || {{ cat {log}; exit 1; }}; sleep 0.1; done"
        )

    def wait_for_server_end(self, port: int, timeout: float = 30.0) -> str:
        """Wait until the server that start_server() started has ended; return its output.

        The server writes to a file, so most of its output is flushed at its end. A zombie has no
        executable, so /proc/PID/exe shows the end.
        """
        return self.run_checked_command(
            f"while [ -e /proc/$(cat /tmp/{port}.pid)/exe ]; do sleep 0.05; done; "
            f"cat /tmp/{port}.log",
            timeout,
        )

    def wait_until_siw_ready(self) -> None:
        """Wait until siw is ready for FPDUs on the connection that it accepted last.

        siw logs "established" (reason 3) after its MPA Reply. Before that, siw may leave an FPDU
        unread until more octets arrive. Without that log line, the function returns after 2 s.
        """
        said = "dmesg | grep -E 'send mpa reply|siw_cm_upcall.*reason=3' | tail -n 1"
        self.run_command(
            f"n=0; until {said} | grep -q reason=3; do n=$((n+1)); [ $n -lt 40 ] || exit 1; "
            "sleep 0.05; done"
        )

    def wait_until_server_sleeps(self, port: int) -> None:
        """Wait until the server on this port sleeps, and siw has returned from the server's last
        post.

        siw may answer a Read that arrives during that post with wrong data, as README.md explains.
        """
        state = f"/proc/$(cat /tmp/{port}.pid)/status"
        self.run_checked_command(
            f"n=0; until grep -q '^State:.S' {state}; do n=$((n+1)); [ $n -lt 500 ] || exit 1; "
            "sleep 0.01; done"
        )

    def find_kernel_fault(self) -> str:
        """Return the console line in which the kernel reports a fault, or an empty string."""
        return find_kernel_fault(self.console.read_text(errors="replace"))

    def new_kernel_messages(self) -> str:
        """Return the kernel messages (including siw's debug messages) since the last call."""
        return self.run_checked_command("dmesg -c")


def main(arguments: Sequence[str]) -> int:
    """Run the command line, which the docstring of the module describes."""
    verb = arguments[0] if arguments else "help"
    if verb not in ("build", "boot", "exec") or (verb == "exec") != (len(arguments) > 1):
        print(__doc__)
        return 0 if verb == "help" else 1
    try:
        image = get_or_build_guest_image()
        if verb == "build":
            print(image)
            return 0
        with Guest(image) as guest:
            if verb == "exec":
                status, output = guest.run_command(" ".join(arguments[1:]), timeout=LIFE_S)
                print(output)
                return status
            for theirs, mine in guest.ports.items():
                print(f"127.0.0.1:{mine} -> guest port {theirs}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                if guest.qemu is not None:
                    guest.qemu.wait()
            return 0
    except Unavailable as error:
        report_progress(str(error))
        return 2
    except GuestError as error:
        report_progress(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
