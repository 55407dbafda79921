"""Writes SHA256SUMS and the bill of materials siwarp.cdx.json for the files in dist/release."""

from __future__ import annotations

import hashlib
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL
from packaging.requirements import Requirement
from platforms import OUT

SBOM = "siwarp.cdx.json"
#: Extras of pyproject.toml for work on siwarp itself.
DEVELOPMENT = {"test", "lint", "docs", "wheel", "dist", "dev"}


def wheel_metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def file_sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def runtime_components(about: Message) -> list[Component]:
    """Return the packages that siwarp needs at run time; packages of an extra are optional.

    Packages that only the extras for work on siwarp itself need are left out.
    The description of a package has the range of versions, from which the installation selects one.
    """
    found: dict[str, Component] = {}
    for line in about.get_all("Requires-Dist", []):
        one = Requirement(line)
        extra = one.marker is not None and "extra" in str(one.marker)
        if one.name == "siwarp" or (extra and one.name in found):
            continue
        if one.marker and any(one.marker.evaluate({"extra": name}) for name in DEVELOPMENT):
            continue
        found[one.name] = Component(
            name=one.name,
            type=ComponentType.LIBRARY,
            scope=ComponentScope.OPTIONAL if extra else ComponentScope.REQUIRED,
            purl=PackageURL("pypi", name=one.name),
            bom_ref=f"pypi:{one.name}",
            description=f"versions {one.specifier}" if one.specifier else "any version",
        )
    return list(found.values())


def create_bill_of_materials(files: list[Path]) -> Bom:
    about = wheel_metadata(next(f for f in files if f.suffix == ".whl"))
    name, version = about["Name"], about["Version"]
    own = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", name=name, version=version),
        bom_ref=f"pypi:{name}@{version}",
        licenses=[LicenseExpression(about["License-Expression"])],
    )
    bom = Bom()
    bom.metadata.component = own
    parts = runtime_components(about)
    for part in parts:
        bom.components.add(part)
    for file in files:
        digest = HashType(alg=HashAlgorithm.SHA_256, content=file_sha256(file))
        bom.components.add(
            Component(name=file.name, type=ComponentType.FILE, hashes=[digest], bom_ref=file.name)
        )
    bom.register_dependency(own, parts)
    return bom


def main() -> None:
    files = sorted(f for f in OUT.iterdir() if f.suffix in (".whl", ".gz"))
    (OUT / SBOM).write_text(
        JsonV1Dot5(create_bill_of_materials(files)).output_as_string(indent=2) + "\n"
    )
    sums = [f"{file_sha256(f)}  {f.name}\n" for f in (*files, OUT / SBOM)]
    (OUT / "SHA256SUMS").write_text("".join(sums))
    print(f"siwarp: {OUT}: {len(files)} files, {SBOM} and SHA256SUMS")


if __name__ == "__main__":
    main()
