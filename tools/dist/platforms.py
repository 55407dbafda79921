"""The platforms for which a release has a wheel, and the zig compiler command for each."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "dist"
OUT = ROOT / "dist" / "release"


@dataclass(frozen=True)
class Platform:
    """A processor and a C library for which wheels are built."""

    cpu: str  # the name in Python, Debian and meson
    libc: str  # the name in zig, with the oldest supported version
    tag: str  # platform tag of the wheel (PEP 600, PEP 656)

    @property
    def name(self) -> str:
        return f"{self.cpu}-{self.libc.partition('.')[0]}"

    @property
    def target(self) -> str:
        return f"{self.cpu}-linux-{self.libc}"

    @property
    def uses_musl(self) -> bool:
        return self.libc == "musl"

    @property
    def wheels(self) -> list[Path]:
        """The wheels in dist/release for this platform; the first one is that of siwarp."""
        names = (f"siwarp-*-{self.tag}", f"siwarp_sim-*-{self.tag}", "siwarp_ulp-*-any")
        found = [wheel for name in names for wheel in OUT.glob(f"{name}.whl")]
        if len(found) != len(names):
            raise SystemExit(f"{OUT} has not the wheels {', '.join(names)}")
        return found


PLATFORMS = [
    Platform("x86_64", "gnu.2.28", "manylinux_2_28_x86_64"),
    Platform("aarch64", "gnu.2.28", "manylinux_2_28_aarch64"),
    Platform("x86_64", "musl", "musllinux_1_2_x86_64"),
    Platform("aarch64", "musl", "musllinux_1_2_aarch64"),
]


def select_platforms(names: list[str]) -> list[Platform]:
    """Return the platforms with the given names, or all; raise SystemExit for an unknown name."""
    by_name = {p.name: p for p in PLATFORMS}
    if unknown := [n for n in names if n not in by_name]:
        raise SystemExit(f"no platform {', '.join(unknown)}: there are {', '.join(by_name)}")
    return [by_name[n] for n in names] or PLATFORMS


def zig_path() -> Path:
    """Return the path of the zig compiler in PyPI's package ziglang."""
    spec = find_spec("ziglang")
    if not spec or not spec.origin:
        raise SystemExit("the package ziglang is missing: run make dist, which installs it")
    return Path(spec.origin).with_name("zig")


def compiler_command(platform: Platform) -> list[str]:
    """Return the command that compiles C for a platform, without create_common_headers_folder()."""
    # Without -fno-sanitize=undefined, zig would trap undefined behaviour of C.
    return [str(zig_path()), "cc", "-target", platform.target, "-fno-sanitize=undefined"]


def create_common_headers_folder() -> Path:
    """Return a folder with links to the system headers that are valid for every platform.

    The folder has the headers of libibverbs and librdmacm and, if Debian installs it by processor,
    Python's pyconfig.h, which is the same for all processors with pointers and longs of 64 bits.
    """
    folder = BUILD / "include"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: Path("/usr/include") / name for name in ("infiniband", "rdma")}
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    version = "python{}.{}".format(*sys.version_info)
    settings = Path("/usr/include") / multiarch / version
    if (settings / "pyconfig.h").is_file():
        wanted |= {f"{cpu}-linux-gnu/{version}": settings for cpu in ("x86_64", "aarch64")}
    for name, origin in wanted.items():
        link = folder / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(origin)
    return folder
