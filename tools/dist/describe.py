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


#: The distribution whose extras require the other two.
MAIN = "siwarp"


def wheel_metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def file_sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def runtime_components(about: Message, own: set[str]) -> list[Component]:
    """Return the packages that siwarp needs at run time; packages of an extra are optional.

    Packages that only the extras for work on siwarp itself need, and siwarp's own distributions
    (``own``), are left out. The description of a package has the range of versions, from which the
    installation selects one.
    """
    found: dict[str, Component] = {}
    for line in about.get_all("Requires-Dist", []):
        one = Requirement(line)
        extra = one.marker is not None and "extra" in str(one.marker)
        if one.name in own or (extra and one.name in found):
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


def own_component(about: Message) -> Component:
    """Return the component of one of siwarp's distributions."""
    name, version = about["Name"], about["Version"]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        scope=None if name == MAIN else ComponentScope.OPTIONAL,
        purl=PackageURL("pypi", name=name, version=version),
        bom_ref=f"pypi:{name}@{version}",
        licenses=[LicenseExpression(about["License-Expression"])],
    )


def create_bill_of_materials(files: list[Path]) -> Bom:
    wheels = [wheel_metadata(f) for f in files if f.suffix == ".whl"]
    about = {metadata["Name"]: metadata for metadata in wheels}  # equal for all platforms
    own = {name: own_component(metadata) for name, metadata in about.items()}
    main, others = own[MAIN], [own[name] for name in sorted(own) if name != MAIN]
    bom = Bom()
    bom.metadata.component = main
    needed = runtime_components(about[MAIN], set(own))
    for component in (*needed, *others):
        bom.components.add(component)
    for file in files:
        digest = HashType(alg=HashAlgorithm.SHA_256, content=file_sha256(file))
        bom.components.add(
            Component(name=file.name, type=ComponentType.FILE, hashes=[digest], bom_ref=file.name)
        )
    bom.register_dependency(main, needed)
    for other in others:
        bom.register_dependency(other, [main])
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
