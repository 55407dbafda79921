# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The comm tests in Debian's package python3-distributed, with siw:// in place of tcp://.

The package and what it depends on, Python included, are unpacked under build/ and not installed.
The tests that run are copies made there, in which the addresses are replaced; debian_plugin.py runs
inside pytest.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
ROOT = REPO / "build" / "dask-debian"
PACKAGES = (
    "python3-distributed",
    "python3-pytest",
    "python3-pytest-timeout",
    "python3-cffi-backend",
)
#: Modules of tests, relative to the package distributed.
MODULES = ("comm/tests/test_comms.py", "tests/test_batched.py")
#: Seconds after which a test has failed.
LIMIT = 60


def unpack_packages() -> None:
    """Download ``PACKAGES`` with all dependencies by apt and unpack them, if not done before."""
    if ROOT.exists():
        return
    ROOT.parent.mkdir(exist_ok=True)
    # An empty status file: for apt, no package is installed, so it downloads all dependencies.
    with tempfile.TemporaryDirectory(dir=ROOT.parent, prefix="dask-debian-") as folder:
        state, unpacked = Path(folder, "apt"), Path(folder, "root")
        for each in ("lists/partial", "cache/archives/partial"):
            (state / each).mkdir(parents=True)
        (state / "status").touch()
        unpacked.mkdir()
        apt = ["apt-get", "-qq", "-o", f"Dir::State={state}", "-o", f"Dir::Cache={state}/cache"]
        apt += [
            "-o",
            f"Dir::State::lists={state}/lists",
            "-o",
            f"Dir::State::status={state}/status",
        ]
        apt += ["-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none"]
        apt += ["-o", "Acquire::Retries=3"]
        subprocess.run([*apt, "update"], check=True)
        download = ["install", "-y", "--download-only", "--no-install-recommends", *PACKAGES]
        subprocess.run([*apt, *download], check=True, stdout=subprocess.DEVNULL)
        for package in sorted((state / "cache" / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
        unpacked.rename(ROOT)


def replace_scheme(source: str) -> str:
    """Return the source of a module of tests with siw in place of tcp."""
    return source.replace("tcp://", "siw://").replace('backends, "tcp"', 'backends, "siw"')


def run_comm_tests() -> int:
    """Run the tests; return pytest's exit status, which is 1 if one that applies has failed."""
    unpack_packages()
    packages = ROOT / "usr" / "lib" / "python3" / "dist-packages"
    tests = ROOT / "tests"
    tests.mkdir(exist_ok=True)
    for module in MODULES:
        source = (packages / "distributed" / module).read_text("utf-8")
        (tests / Path(module).name).write_text(replace_scheme(source), "utf-8")
    python = next(
        each
        for each in (ROOT / "usr" / "bin").iterdir()
        if re.fullmatch(r"python3\.\d+", each.name)
    )
    env = os.environ | {
        "PYTHONPATH": str(REPO),
        "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": "siw",
        "SIWARP_LOADER": str(Path(sysconfig.get_path("purelib"), "_siwarp_editable_loader.py")),
    }
    options = ["-p", "lab.dask.debian_plugin", "-p", "no:cacheprovider", "-q", "-rfEs"]
    options += ["-W", "ignore", "--tb=short", f"--timeout={LIMIT}", "-c", os.devnull]
    command = [str(python), "-m", "pytest", *options, f"--rootdir={tests}", str(tests)]
    return subprocess.run(command, env=env, cwd=tests).returncode
