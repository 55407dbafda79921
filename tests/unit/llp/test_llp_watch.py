"""Watching a network interface: its kernel notifications are reported, those of others are not."""

from __future__ import annotations

#: Prevents automatic addresses; the link is up before the watch begins.
QUIET = "echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode"
MAKE = (
    f"{QUIET}; ip link add w0 type veth peer name p0; ip link set p0 up; ip link set w0 up; "
    "until ip link show w0 | grep -q 'state UP'; do sleep 0.01; done"
)
WATCH = """
import subprocess
def ip(text):
    subprocess.run(["ip", *text.split()], check=True)

p = Port()
out = ffi.new("struct siw_llp_watch **")
assert lib.siw_llp_watch_open(p.c, b"w0", ffi.NULL, out) == 0
w = out[0]
UP, DOWN, ADDRS = lib.SIW_LLP_WATCH_UP, lib.SIW_LLP_WATCH_DOWN, lib.SIW_LLP_WATCH_ADDRS

def news():
    "All that there is, each said once."
    told = []
    while got := lib.siw_llp_watch_read(w):
        told.append(got)
    return told

def comes(what):
    "Read on until there are these news; the kernel tells of a carrier when it gets round to it."
    wait_until(lambda: what in news())
"""
END = """
lib.siw_llp_watch_close(w)
p.close()
"""


def test_a_link_goes_down_and_up_and_its_addresses_come_and_go(run_in_namespace):
    run_in_namespace(
        MAKE,
        WATCH
        + """
news()
ip("link set w0 down")
comes(DOWN)
ip("link set w0 up")
comes(UP)
# The kernel may tell of the carrier once more in between.
ip("addr add 192.0.2.1/24 dev w0")
comes(ADDRS)
ip("addr del 192.0.2.1/24 dev w0")
comes(ADDRS)
ip("addr add fd00::1/64 dev w0 nodad")
comes(ADDRS)
"""
        + END,
    )


def test_changes_of_other_interfaces_are_not_reported(run_in_namespace):
    run_in_namespace(
        f"ip link set lo up; {MAKE}",
        WATCH
        + """
news()
ip("link add other type veth peer name other1")
ip("link set other up")
ip("addr add 192.0.2.9/24 dev other")
ip("link set other down")
ip("link del other")
ip("addr add 127.0.0.2/32 dev lo")
assert news() == []
for i in range(40):  # two messages each: more than one call reads
    ip(f"addr add 198.51.100.{i}/32 dev lo")
    ip(f"addr del 198.51.100.{i}/32 dev lo")
ip("addr add 192.0.2.1/24 dev w0")
assert lib.siw_llp_watch_read(w) == 0, "there is more behind what was not ours"
assert news() == [ADDRS]
"""
        + END,
    )


def test_an_interface_that_goes_and_comes_back_is_known_by_its_name(run_in_namespace):
    run_in_namespace(
        MAKE,
        WATCH
        + """
news()
ip("link del w0")
comes(DOWN)
assert news() == []
ip("link add w00 type veth peer name w01")
ip("link set w00 up")
ip("addr add 192.0.2.2/24 dev w00")
assert news() == [], "a longer name is another's"
ip("link add w0 type veth peer name p0")
ip("link set p0 up")
comes(DOWN)  # it is there, and down
ip("link set w0 up")
comes(UP)
"""
        + END,
    )


def test_an_interface_created_later_is_reported(run_in_namespace):
    run_in_namespace(
        f"{QUIET}; ip link set lo up",
        WATCH
        + """
assert news() == []
ip("link add w0 type veth peer name p0")
ip("link set p0 up")
ip("link set w0 up")
comes(UP)
"""
        + END,
    )


def test_an_overflow_of_notifications_is_reported(run_in_namespace):
    run_in_namespace(
        MAKE,
        WATCH
        + """
news()
import tempfile
with tempfile.NamedTemporaryFile("w", suffix=".ip") as batch:
    for i in range(4000):
        batch.write(f"addr {'add' if i % 2 == 0 else 'del'} 192.0.2.1/32 dev w0\\n")
    batch.flush()
    ip(f"-batch {batch.name}")
assert lib.SIW_LLP_WATCH_LOST in news()
ip("addr add 192.0.2.1/24 dev w0")
assert news() == [ADDRS]
"""
        + END,
    )
