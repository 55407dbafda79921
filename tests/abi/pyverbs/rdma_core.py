"""Runs rdma-core's tests for pyverbs, as installed by Debian: each must pass or be skipped.

rdma_core.py DEVICE
"""

import collections
import gzip
import pathlib
import sys
import tempfile
import unittest

INSTALLED = pathlib.Path("/usr/share/doc/rdma-core/tests")
#: Excluded tests, with the reason.
LEFT_OUT = {
    "test_rdmacm_async_traffic": "its queue pair is to show an ACK time-out, but has TCP's",
}
#: The minimum number of tests that must pass.
PASSED = 113


def unpack_rdma_core_tests(folder):
    """Copy rdma-core's tests to a folder and decompress them."""
    for file in INSTALLED.iterdir():
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        (folder / file.name.removesuffix(".gz")).write_bytes(text)


def included_tests(suite):
    """Yield every test of the suite that is not excluded."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from included_tests(test)
        elif not test.id().endswith(tuple(f".{name}" for name in LEFT_OUT)):
            yield test


def main():
    device = sys.argv[1]
    with tempfile.TemporaryDirectory() as work:
        tests = pathlib.Path(work, "tests")
        tests.mkdir()
        unpack_rdma_core_tests(tests)
        sys.path[:0] = [work, str(tests)]
        from args_parser import parser as own
        from tests.args_parser import parser

        import tests as package

        sys.argv[1:] = ["--dev", device, "--gid", "0"]
        parser.parse_args()
        own.args = parser.args
        suite = unittest.TestSuite(
            included_tests(unittest.TestLoader().loadTestsFromModule(package))
        )
        done = unittest.TextTestRunner(verbosity=2).run(suite)
    for why, count in collections.Counter(why for _, why in done.skipped).items():
        print(f"{count} skipped: {why}")
    for name, why in LEFT_OUT.items():
        print(f"left out: {name}: {why}")
    passed = done.testsRun - len(done.skipped) - len(done.failures) - len(done.errors)
    assert done.wasSuccessful() and passed >= PASSED, f"{passed} passed"
    print("rdma_core: correct")


main()
