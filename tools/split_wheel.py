"""Split a complete wheel of siwarp into three wheels: `python tools/split_wheel.py WHEEL FOLDER`.

meson-python builds one wheel with all files. A release has three distributions of one version,
which install disjoint files into the one folder siwarp/:

- siwarp-sim has the simulator, which is a second build of all layers;
- siwarp-ulp has the upper-layer protocols, which are Python files only;
- siwarp has all other files.

The requirements on siwarp-sim and siwarp-ulp are added here, to the METADATA of the wheel siwarp.
They are not in pyproject.toml, which describes the complete tree: an editable installation and the
sdist have all files, and must not ask an index for distributions with the same files.

The output depends only on the contents of the wheel, so siwarp-ulp is the same file for all
platforms.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import sys
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo


@dataclass(frozen=True)
class Distribution:
    """A distribution that a complete wheel is split into."""

    name: str
    #: What the names of its files begin with, unless an earlier distribution has the file.
    prefixes: tuple[str, ...]
    #: The extras of siwarp that require this distribution.
    extras: tuple[str, ...] = ()
    summary: str = ""
    #: The tag of the wheel, if it is not that of the complete wheel.
    tag: str = ""

    @property
    def file_name(self) -> str:
        """The name at the beginning of the wheel's file name."""
        return self.name.replace("-", "_")


SIWARP = Distribution("siwarp", ("siwarp/",))
DISTRIBUTIONS = (
    Distribution(
        "siwarp-sim",
        ("siwarp/sim/", "siwarp/_siwarp_sim.", "siwarp/lib/libsiwarp-sim.so"),
        ("sim",),
        "The simulator of siwarp: siwarp.sim and the command siwarp sim",
    ),
    # siwarp cp and siwarp serve use siwarp.ulp; the extras ftp and fsspec include cli.
    Distribution(
        "siwarp-ulp",
        ("siwarp/ulp/",),
        ("cli", "dask"),
        "The upper-layer protocols of siwarp: ADTS, FTP, and communication of dask.distributed",
        "py3-none-any",
    ),
    SIWARP,
)


@dataclass(frozen=True)
class File:
    """A file of a wheel."""

    name: str
    octets: bytes
    mode: int = 0o100644


def distribution_of_file(name: str) -> Distribution:
    """Return the distribution that has a file of the complete wheel."""
    return next(d for d in DISTRIBUTIONS if name.startswith(d.prefixes))


def read_wheel(wheel: Path) -> list[File]:
    """Return all files of a wheel except RECORD."""
    with ZipFile(wheel) as archive:
        return [
            File(info.filename, archive.read(info), info.external_attr >> 16)
            for info in archive.infolist()
            if not info.filename.endswith(".dist-info/RECORD")
        ]


def siwarp_metadata(complete: str, version: str) -> str:
    """Return the METADATA of the wheel siwarp, with the requirements of its extras."""
    for distribution in DISTRIBUTIONS:
        for extra in distribution.extras:
            line = f"\nProvides-Extra: {extra}\n"
            if line not in complete:
                raise SystemExit(f"pyproject.toml has no extra {extra}, for {distribution.name}")
            need = f'Requires-Dist: {distribution.name}=={version}; extra == "{extra}"\n'
            complete = complete.replace(line, line + need, 1)
    return complete


def part_metadata(complete: str, distribution: Distribution, version: str) -> str:
    """Return the METADATA of siwarp-sim or siwarp-ulp."""
    replaced = {
        "Name": distribution.name,
        "Summary": distribution.summary,
        "Requires-Dist": "",
        "Provides-Extra": "",
        "Description-Content-Type": "",
    }
    lines = []
    for line in complete.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(": ")
        if value := replaced.get(key, value):
            lines.append(f"{key}: {value}\n")
    extras = " or ".join(f"`pip install 'siwarp[{extra}]'`" for extra in distribution.extras)
    return (
        "".join(lines)
        + f"Requires-Dist: siwarp=={version}\nDescription-Content-Type: text/markdown\n\n"
        + f"A part of siwarp {version}. {extras} installs it together with siwarp.\n"
    )


def entry_points_of_distribution(complete: str, distribution: Distribution) -> str:
    """Return the entry points whose modules a distribution has, in the format of the file."""
    parser = configparser.ConfigParser(delimiters="=", interpolation=None)
    parser.optionxform = str  # names keep their case
    parser.read_string(complete)
    text = ""
    for group in parser.sections():
        lines = [
            f"{name} = {value}\n"
            for name, value in parser.items(group)
            if distribution_of_file(value.partition(":")[0].replace(".", "/") + "/") is distribution
        ]
        text += "".join([f"[{group}]\n", *lines, "\n"]) if lines else ""
    return text


def retagged(wheel_file: str, tag: str) -> str:
    """Return the text of the file WHEEL with another tag.

    Root-Is-Purelib remains false: the files must be beside those of the wheel siwarp, and a system
    may have separate folders for distributions with and without compiled files.
    """
    lines = [line for line in wheel_file.splitlines() if line and not line.startswith("Tag: ")]
    return "\n".join([*lines, f"Tag: {tag}"]) + "\n"


def write_wheel(wheel: Path, info: str, files: list[File]) -> None:
    """Write a wheel with its RECORD, whose folder is ``info``."""
    record = io.StringIO()
    with ZipFile(wheel, "w", ZIP_DEFLATED) as archive:
        for file in files:
            digest = urlsafe_b64encode(hashlib.sha256(file.octets).digest()).rstrip(b"=").decode()
            record.write(f"{file.name},sha256={digest},{len(file.octets)}\n")
        record.write(f"{info}/RECORD,,\n")
        for file in (*files, File(f"{info}/RECORD", record.getvalue().encode())):
            entry = ZipInfo(file.name)  # dated 1980
            entry.external_attr = file.mode << 16
            archive.writestr(entry, file.octets, ZIP_DEFLATED, 9)


def split_wheel(wheel: Path, folder: Path) -> list[Path]:
    """Write the three wheels into a folder; return their paths."""
    _, version, tag = wheel.stem.split("-", 2)
    complete_info = f"siwarp-{version}.dist-info/"
    files = read_wheel(wheel)
    about = {
        file.name.removeprefix(complete_info): file.octets.decode()
        for file in files
        if file.name.startswith(complete_info)
    }
    payload = [file for file in files if not file.name.startswith(complete_info)]
    written = []
    for distribution in DISTRIBUTIONS:
        own = [file for file in payload if distribution_of_file(file.name) is distribution]
        if distribution.tag:
            for file in own:
                if file.octets.startswith(b"\x7fELF"):
                    raise SystemExit(f"{file.name} is compiled: {distribution.name} cannot have it")
        texts = dict(about)
        if distribution is SIWARP:
            texts["METADATA"] = siwarp_metadata(about["METADATA"], version)
        else:
            texts["METADATA"] = part_metadata(about["METADATA"], distribution, version)
        texts["WHEEL"] = retagged(about["WHEEL"], distribution.tag or tag)
        texts["entry_points.txt"] = entry_points_of_distribution(
            about["entry_points.txt"], distribution
        )
        info = f"{distribution.file_name}-{version}.dist-info"
        own += [File(f"{info}/{name}", text.encode()) for name, text in texts.items() if text]
        path = folder / f"{distribution.file_name}-{version}-{distribution.tag or tag}.whl"
        write_wheel(path, info, own)
        written.append(path)
    return written


if __name__ == "__main__":
    print(*split_wheel(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
