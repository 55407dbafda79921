"""tools/split_wheel.py splits a small wheel into the three wheels of a release."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest

ROOT = Path(__file__).resolve().parents[3]
TAG = "cp310-abi3-manylinux_2_28_x86_64"
METADATA = """\
Metadata-Version: 2.4
Name: siwarp
Version: 1.2
Summary: A software RNIC
License-Expression: GPL-2.0-only OR BSD-2-Clause
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: cffi>=1.15
Provides-Extra: sim
Provides-Extra: cli
Requires-Dist: typer; extra == "cli"
Provides-Extra: dask
Requires-Dist: distributed; extra == "dask"
Description-Content-Type: text/markdown

# siwarp

Provides-Extra: text of the description
"""
ENTRY_POINTS = """\
[console_scripts]
siwarp = siwarp.cli.main:main

[pytest11]
siwarp = siwarp.pytest_plugin

[fsspec.specs]
siftp = siwarp.ulp.ftp.filesystem:FileSystem
"""
#: The files of each wheel.
FILES = {
    "siwarp": {
        "siwarp/__init__.py": b"",
        "siwarp/_siwarp.abi3.so": b"\x7fELF module",
        "siwarp/_siwarp.pyi": b"stub",
        "siwarp/lib/libsiwarp.so.0": b"\x7fELF library",
        "siwarp/bench/bin/siwarp-bench": b"\x7fELF program",
        "siwarp/cli/sim.py": b"command",
    },
    "siwarp_sim": {
        "siwarp/_siwarp_sim.abi3.so": b"\x7fELF simulated module",
        "siwarp/lib/libsiwarp-sim.so": b"\x7fELF simulated library",
        "siwarp/sim/__init__.py": b"sim",
        "siwarp/sim/workloads/__init__.py": b"workloads",
    },
    "siwarp_ulp": {
        "siwarp/ulp/__init__.py": b"ulp",
        "siwarp/ulp/ftp/filesystem.py": b"ftp",
    },
}
NAMES = {
    "siwarp": f"siwarp-1.2-{TAG}.whl",
    "siwarp_sim": f"siwarp_sim-1.2-{TAG}.whl",
    "siwarp_ulp": "siwarp_ulp-1.2-py3-none-any.whl",
}


def mode_of_file(name: str) -> int:
    return 0o100755 if "/bin/" in name or ".so" in name else 0o100644


def write_complete_wheel(wheel: Path, more: dict[str, bytes], year: int = 2026) -> None:
    info = "siwarp-1.2.dist-info"
    everything = {
        f"{info}/METADATA": METADATA.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {TAG}\n\n".encode(),
        f"{info}/entry_points.txt": ENTRY_POINTS.encode(),
        f"{info}/licenses/LICENSE": b"licence",
        **{name: octets for files in FILES.values() for name, octets in files.items()},
        **more,
        f"{info}/RECORD": b"of the complete wheel",
    }
    wheel.parent.mkdir(exist_ok=True)
    with ZipFile(wheel, "w") as archive:
        for name, octets in everything.items():
            entry = ZipInfo(name, (year, 1, 1, 0, 0, 0))
            entry.external_attr = mode_of_file(name) << 16
            archive.writestr(entry, octets)


def run_split(folder: Path, more: dict[str, bytes], year: int = 2026) -> tuple[str, Path]:
    """Split a wheel in a folder; return the error message and the folder with the parts."""
    wheel = folder / "complete" / f"siwarp-1.2-{TAG}.whl"
    write_complete_wheel(wheel, more, year)
    (folder / "parts").mkdir()
    done = subprocess.run(
        [sys.executable, ROOT / "tools/split_wheel.py", wheel, folder / "parts"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == bool(done.stderr), done.stderr
    return done.stderr, folder / "parts"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZipFile]:
    error, parts = run_split(tmp_path_factory.mktemp("split"), {})
    assert error == ""
    assert {path.name for path in parts.iterdir()} == set(NAMES.values())
    return {name: ZipFile(parts / file) for name, file in NAMES.items()}


def read_info(wheels: dict[str, ZipFile], name: str, file: str) -> bytes:
    return wheels[name].read(f"{name}-1.2.dist-info/{file}")


def test_the_three_wheels_have_disjoint_files_and_together_all(wheels: dict[str, ZipFile]) -> None:
    for name, archive in wheels.items():
        found = {i.filename: i for i in archive.infolist() if ".dist-info/" not in i.filename}
        assert {file: archive.read(file) for file in found} == FILES[name]
        for file, entry in found.items():
            assert entry.external_attr >> 16 == mode_of_file(file), file


def test_the_record_of_each_wheel_has_the_digests_of_its_files(wheels: dict[str, ZipFile]) -> None:
    for name, archive in wheels.items():
        rows = list(csv.reader(read_info(wheels, name, "RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == archive.namelist()
        assert rows.pop() == [f"{name}-1.2.dist-info/RECORD", "", ""]
        for file, digest, size in rows:
            octets = archive.read(file)
            sha256 = base64.urlsafe_b64encode(hashlib.sha256(octets).digest()).decode()
            assert (digest, int(size)) == ("sha256=" + sha256.rstrip("="), len(octets)), file
        assert f"{name}-1.2.dist-info/licenses/LICENSE" in archive.namelist()


def test_only_the_extras_of_siwarp_require_the_other_wheels_of_its_version(
    wheels: dict[str, ZipFile],
) -> None:
    about = {name: message_from_bytes(read_info(wheels, name, "METADATA")) for name in wheels}
    assert about["siwarp"].get_all("Requires-Dist") == [
        "cffi>=1.15",
        'siwarp-sim==1.2; extra == "sim"',
        'siwarp-ulp==1.2; extra == "cli"',
        'typer; extra == "cli"',
        'siwarp-ulp==1.2; extra == "dask"',
        'distributed; extra == "dask"',
    ]
    assert about["siwarp"].get_payload() == METADATA.partition("\n\n")[2]
    for name in ("siwarp_sim", "siwarp_ulp"):
        one = about[name]
        assert one.get_all("Name") == [name.replace("_", "-")]
        assert one.get_all("Version") == ["1.2"]
        assert one.get_all("Requires-Dist") == ["siwarp==1.2"]
        assert one.get_all("Provides-Extra") is None
        for key in ("License-Expression", "License-File", "Requires-Python"):
            assert one.get_all(key) == about["siwarp"].get_all(key)


def test_each_wheel_has_its_tag_and_is_installed_beside_the_compiled_files(
    wheels: dict[str, ZipFile],
) -> None:
    tags = {"siwarp": TAG, "siwarp_sim": TAG, "siwarp_ulp": "py3-none-any"}
    for name, tag in tags.items():
        about = message_from_bytes(read_info(wheels, name, "WHEEL"))
        assert (about.get_all("Tag"), about["Root-Is-Purelib"]) == ([tag], "false")


def test_entry_points_are_in_the_wheel_with_their_module(wheels: dict[str, ZipFile]) -> None:
    found = {}
    for name, archive in wheels.items():
        if f"{name}-1.2.dist-info/entry_points.txt" in archive.namelist():
            parser = configparser.ConfigParser()
            parser.read_string(read_info(wheels, name, "entry_points.txt").decode())
            found[name] = {group: dict(parser.items(group)) for group in parser.sections()}
    assert found == {
        "siwarp": {
            "console_scripts": {"siwarp": "siwarp.cli.main:main"},
            "pytest11": {"siwarp": "siwarp.pytest_plugin"},
        },
        "siwarp_ulp": {"fsspec.specs": {"siftp": "siwarp.ulp.ftp.filesystem:FileSystem"}},
    }


def test_the_output_does_not_depend_on_dates_in_the_complete_wheel(
    wheels: dict[str, ZipFile], tmp_path: Path
) -> None:
    _, parts = run_split(tmp_path, {}, year=2020)
    for name, archive in wheels.items():
        first = Path(str(archive.filename)).read_bytes()
        assert (parts / NAMES[name]).read_bytes() == first


def test_a_compiled_file_in_the_wheel_for_all_platforms_is_refused(tmp_path: Path) -> None:
    error, _ = run_split(tmp_path, {"siwarp/ulp/fast.abi3.so": b"\x7fELF"})
    assert error == "siwarp/ulp/fast.abi3.so is compiled: siwarp-ulp cannot have it\n"
