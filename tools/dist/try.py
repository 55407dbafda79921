"""Test the files that make.py built: `python tools/dist/try.py [PLATFORM...]`.

The wheels for a platform must contain the files of the tree, and have no requirements beyond their
tag; C programs must run with the library of the wheel siwarp, if necessary under qemu-user and the
loader of another C library. With glibc, the Python of Debian for the processor must run Python
programs with the wheels. The sdist must build, and the result must have all files and transfer data.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from platforms import BUILD, OUT, ROOT, Platform, compiler_command, select_platforms

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
#: Libraries of the system that siwarp's libraries may need, besides the loader.
GNU = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
OURS = {"libsiwarp.so.0", "libsiwarp-sim.so", "libibverbs.so.1", "librdmacm.so.1"}
LIMIT_S = 120


def elf_requirement_errors(platform: Platform, name: str, file: Path) -> list[str]:
    """Return errors for forbidden requirements of an ELF file; [] for other files."""
    with file.open("rb") as octets:
        if octets.read(4) != b"\x7fELF":
            return []
        elf = ELFFile(octets)
        found = []
        if elf["e_machine"] != MACHINES[platform.cpu]:
            found.append(f"is for {elf['e_machine']}")
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                found += forbidden_library_errors(platform, section)
            elif isinstance(section, GNUVerNeedSection):
                found += too_new_glibc_errors(platform, section)
        return [f"{name} {what}" for what in found]


def forbidden_library_errors(platform: Platform, section: DynamicSection) -> list[str]:
    allowed = OURS | ({"libc.so"} if platform.uses_musl else GNU)
    asked = [tag.needed for tag in section.iter_tags("DT_NEEDED")]
    return [f"needs {n}" for n in asked if n not in allowed and not n.startswith("ld-linux")]


def too_new_glibc_errors(platform: Platform, section: GNUVerNeedSection) -> list[str]:
    most = tuple(int(n) for n in platform.libc.split(".")[1:])
    names = [aux.name for _, entries in section.iter_versions() for aux in entries]
    glibc = [n.removeprefix("GLIBC_") for n in names if n.startswith("GLIBC_")]
    return [f"needs glibc {v}" for v in glibc if tuple(map(int, v.split("."))) > most]


def check_files_match_platform_tag(platform: Platform, unpacked: Path) -> None:
    """Raise SystemExit if files of the wheels have requirements beyond the tag."""
    found = [
        wrong
        for file in sorted(unpacked.rglob("*"))
        if file.is_file()
        for wrong in elf_requirement_errors(platform, str(file.relative_to(unpacked)), file)
    ]
    if found:
        raise SystemExit("\n".join(f"{platform.tag}: {wrong}" for wrong in found))


def unpacked_debian_folder(platform: Platform) -> Path:
    """Return the folder with unpacked packages of Debian for a platform (tools/dist/run)."""
    return BUILD / "root" / platform.name


def emulator_command(platform: Platform) -> list[str]:
    """Return the command prefix that runs programs of a platform on this machine."""
    native = os.uname().machine == platform.cpu
    root = unpacked_debian_folder(platform)
    qemu = [] if native else [f"qemu-{platform.cpu}", "-L", str(root)]
    if platform.uses_musl:
        return [*qemu, str(root / f"lib/ld-musl-{platform.cpu}.so.1")]
    return qemu


def compile_example(platform: Platform, package: Path, example: str) -> list[str]:
    """Compile a C example with the wheel's headers and library; return the command that runs it."""
    program = package.parent / example
    command = [
        *compiler_command(platform), "-std=gnu11", "-O2", ROOT / f"examples/c/{example}.c",
        "-o", program,
        "-I", package / "include", "-L", package / "lib", "-l:libsiwarp.so.0", "-lpthread",
        f"-Wl,-rpath,{package / 'lib'}",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return [*emulator_command(platform), str(program)]


def run_examples(platform: Platform, package: Path) -> None:
    """Run the C examples with the library of a wheel, each as server and client."""
    for example, argument in (("ud_pingpong", "100"), ("rc_write", "a text")):
        run = compile_example(platform, package, example)
        with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as server:
            try:
                said = server.stdout.readline() if server.stdout else ""
                port = re.findall(r"\d+", said)[-1]
                client = [*run, "127.0.0.1", port, argument]
                subprocess.run(client, check=True, timeout=LIMIT_S)
            finally:
                server.kill()
        print(f"siwarp: {platform.name}: {example} runs", flush=True)


def run_python_programs(platform: Platform, modules: Path) -> None:
    """Run the README's example, a simulated process and a command with the wheels' modules.

    The interpreter is Debian's for the processor of the wheels; its packages are unpacked, but not
    configured. ``modules`` is the folder with the unpacked wheels.
    """
    example = modules / "example.py"
    source = subprocess.run(
        [sys.executable, ROOT / "tools/readme_example.py", ROOT / "README.md"],
        capture_output=True, check=True,
    )  # fmt: skip
    example.write_bytes(source.stdout)
    python = [*emulator_command(platform), str(unpacked_debian_folder(platform) / "usr/bin/python3")]
    programs = {
        "the README's example": [str(example)],
        "simulated.py": [str(ROOT / "examples/python/simulated.py")],
        "siwarp config": ["-m", "siwarp.cli", "config"],
    }
    for name, arguments in programs.items():
        done = subprocess.run(
            [*python, *arguments], env={**os.environ, "PYTHONPATH": str(modules)}, cwd=modules,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        # A system call that fails in the simulator does not end the program: it only prints a line.
        if done.returncode != 0 or "siwarp.sim: " in done.stdout:
            raise SystemExit(f"{platform.name}: {name} failed in Python:\n{done.stdout}")
        print(f"siwarp: {platform.name}: {name} runs in Python", flush=True)


def check_wheels(platform: Platform) -> None:
    wheels = platform.wheels
    subprocess.run([sys.executable, ROOT / "tools/wheel_contents.py", *wheels], check=True)
    with tempfile.TemporaryDirectory(prefix="siwarp wheel ") as folder:
        for wheel in wheels:
            zipfile.ZipFile(wheel).extractall(folder)
        check_files_match_platform_tag(platform, Path(folder))
        run_examples(platform, Path(folder) / "siwarp")
        if not platform.uses_musl:
            run_python_programs(platform, Path(folder))


def check_sdist() -> None:
    """Install the sdist into an empty virtual environment, and run `siwarp ping`."""
    (sdist,) = OUT.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="siwarp sdist ") as folder:
        venv.create(folder, with_pip=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        for attempt in (1, 2, 3):
            done = subprocess.run([*pip, f"{sdist}[cli]"], cwd=folder)
            if done.returncode == 0:
                break
            print(f"siwarp: pip install of {sdist.name}: attempt {attempt} of 3 failed", flush=True)
        else:
            raise SystemExit(f"{sdist.name} cannot be installed")
        ping = [f"{folder}/bin/siwarp", "ping", "--qp", "rc", "--iters", "1000"]
        subprocess.run(ping, cwd=folder, check=True, timeout=LIMIT_S)
        parts = [f"{folder}/bin/python", "-c", "import siwarp.sim, siwarp.ulp.adts"]
        subprocess.run(parts, cwd=folder, check=True, timeout=LIMIT_S)
    print(f"siwarp: {sdist.name} builds, and the result works", flush=True)


def main() -> None:
    for platform in select_platforms(sys.argv[1:]):
        check_wheels(platform)
    check_sdist()


if __name__ == "__main__":
    main()
