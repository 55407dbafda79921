"""Build an sdist and wheels in dist/release: `python tools/dist/make.py [PLATFORM...]`.

Each platform has a wheel of siwarp and one of siwarp-sim; siwarp-ulp has one wheel for all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import mesonpy
from platforms import (
    BUILD,
    OUT,
    ROOT,
    Platform,
    create_common_headers_folder,
    compiler_command,
    select_platforms,
    zig_path,
)


def write_cross_file(platform: Platform) -> Path:
    """Write a cross file for meson that describes a platform; return the path of the file.

    Programs are compiled with -fPIC, like libraries: zig's stubs for variables of musl, for example
    stdout, lack the alignment of the variables, so no program may contain a copy of such a
    variable.
    """
    words = ", ".join(f"'{word}'" for word in compiler_command(platform))
    headers = create_common_headers_folder()
    # By default, zig links musl statically into each program; the wheel needs the shared musl.
    dynamic = ", '-dynamic'" if platform.uses_musl else ""
    text = f"""
[binaries]
c = [{words}]
ar = ['{zig_path()}', 'ar']
ranlib = ['{zig_path()}', 'ranlib']
[built-in options]
c_args = ['-g0', '-fPIC', '-ffunction-sections', '-fdata-sections', '-isystem', '{headers}']
c_link_args = ['-Wl,-s', '-Wl,--gc-sections', '-Wl,--hash-style=gnu'{dynamic}]
[properties]
needs_exe_wrapper = true
[host_machine]
system = 'linux'
cpu_family = '{platform.cpu}'
cpu = '{platform.cpu}'
endian = 'little'
"""
    file = BUILD / f"{platform.name}.ini"
    if not file.exists() or file.read_text() != text:
        # meson reads a cross file only when it configures an empty folder, so the folder that meson
        # configured with the former text is removed.
        shutil.rmtree(meson_folder(platform), ignore_errors=True)
        file.write_text(text)
    return file


def meson_folder(platform: Platform) -> Path:
    """Return the folder in which meson builds for a platform."""
    return BUILD / "meson" / platform.name


def build_wheels_for_platform(platform: Platform) -> list[Path]:
    """Build the wheels for a platform; return the paths of those that were not there yet."""
    raw = BUILD / "raw" / platform.name
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    # meson-python derives the wheel's platform from that of the interpreter, which this
    # environment variable sets.
    os.environ["_PYTHON_HOST_PLATFORM"] = f"linux-{platform.cpu}"
    arguments = [f"--cross-file={write_cross_file(platform)}", "-Ddebug=false"]
    if platform.uses_musl:  # rdma-core's programs for musl are untested with siwarp's libraries
        arguments.append("-Dabi=disabled")
    settings = {"build-dir": str(meson_folder(platform)), "setup-args": arguments}
    log = BUILD / f"{platform.name}.log"
    try:
        with log.open("w") as to, redirect_output_to(to.fileno()):
            name = mesonpy.build_wheel(str(raw), settings)
    except SystemExit:
        print(log.read_text()[-4000:], file=sys.stderr)
        raise
    # mesonpy tags the wheel for the running interpreter. The C module uses the limited API of
    # Python 3.10, so the wheel is valid for all later versions too.
    tags = ["--python-tag", "cp310", "--abi-tag", "abi3", "--platform-tag", platform.tag]
    done = subprocess.run(
        [sys.executable, "-m", "wheel", "tags", *tags, raw / name],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    parts = raw / "split"
    parts.mkdir()
    complete = raw / done.stdout.strip()
    subprocess.run([sys.executable, ROOT / "tools/split_wheel.py", complete, parts], check=True)
    return [new for part in sorted(parts.iterdir()) if (new := add_wheel(part)) is not None]


def add_wheel(part: Path) -> Path | None:
    """Copy a wheel to dist/release and recompress it; return None if it is there already."""
    wheel = OUT / part.name
    if wheel.exists():  # siwarp-ulp, from another platform
        if zip_contents(wheel) != zip_contents(part):
            raise SystemExit(f"{part} differs from {wheel}, but both are for all platforms")
        return None
    shutil.copy(part, wheel)
    # The recompressed wheel is smaller by a twentieth, and still an ordinary ZIP file.
    subprocess.run(["advzip", "--recompress", "-4", "--quiet", wheel], check=True)
    return wheel


def zip_contents(file: Path) -> dict[str, int]:
    """Return the names of the files in a ZIP file, with their CRCs."""
    with ZipFile(file) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


@contextlib.contextmanager
def redirect_output_to(fd: int) -> Iterator[None]:
    """Redirect the output of this process and its children to a descriptor."""
    sys.stdout.flush()
    before = os.dup(1), os.dup(2)
    os.dup2(fd, 1), os.dup2(fd, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before[0], 1), os.dup2(before[1], 2)
        os.close(before[0]), os.close(before[1])


def main() -> None:
    """Build the sdist and the wheels of the selected platforms into an empty dist/release."""
    platforms = select_platforms(sys.argv[1:])
    os.chdir(ROOT)
    shutil.rmtree(OUT, ignore_errors=True)
    for folder in (OUT, BUILD):
        folder.mkdir(parents=True, exist_ok=True)
    with (BUILD / "sdist.log").open("w") as log, redirect_output_to(log.fileno()):
        sdist = mesonpy.build_sdist(str(OUT))
    print(f"siwarp: {OUT / sdist}", flush=True)
    for i, platform in enumerate(platforms, 1):
        print(f"siwarp: platform {i} of {len(platforms)}: {platform.name}", flush=True)
        for wheel in build_wheels_for_platform(platform):
            print(f"siwarp: {wheel}, {wheel.stat().st_size:,} octets", flush=True)


if __name__ == "__main__":
    main()
