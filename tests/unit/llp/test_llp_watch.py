"""Watches of a network interface, which report the kernel notifications of that interface only."""

from __future__ import annotations

#: A shell command that disables automatic IPv6 addresses.
NO_AUTOMATIC_ADDRESSES = "echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode"
CREATE_INTERFACE = (
    f"{NO_AUTOMATIC_ADDRESSES}; ip link add w0 type veth peer name p0; "
    "ip link set p0 up; ip link set w0 up; "
    "until ip link show w0 | grep -q 'state UP'; do sleep 0.01; done"
)
OPEN_WATCH = """
import subprocess
def run_ip(text):
    subprocess.run(["ip", *text.split()], check=True)

p = Poller()
out = ffi.new("struct siw_llp_watch **")
assert lib.siw_llp_interface_watch_open(p.c, b"w0", ffi.NULL, out) == 0
w = out[0]
UP, DOWN, ADDRS = lib.SIW_LLP_WATCH_UP, lib.SIW_LLP_WATCH_DOWN, lib.SIW_LLP_WATCH_ADDRS

def read_notifications():
    "Return all pending notifications."
    told = []
    while got := lib.siw_llp_interface_watch_read(w):
        told.append(got)
    return told

def wait_for_notification(what):
    "Read until a notification equals `what`; the kernel reports a carrier with some delay."
    wait_until(lambda: what in read_notifications())
"""
CLOSE_WATCH = """
lib.siw_llp_interface_watch_close(w)
p.close()
"""


def test_changes_of_the_link_state_and_the_addresses_of_an_interface_are_reported(run_in_namespace):
    run_in_namespace(
        CREATE_INTERFACE,
        OPEN_WATCH
        + """
read_notifications()
run_ip("link set w0 down")
wait_for_notification(DOWN)
run_ip("link set w0 up")
wait_for_notification(UP)
# Before the next notification, the kernel may report the carrier once more.
run_ip("addr add 192.0.2.1/24 dev w0")
wait_for_notification(ADDRS)
run_ip("addr del 192.0.2.1/24 dev w0")
wait_for_notification(ADDRS)
run_ip("addr add fd00::1/64 dev w0 nodad")
wait_for_notification(ADDRS)
"""
        + CLOSE_WATCH,
    )


def test_an_interface_watch_does_not_report_changes_of_other_interfaces(run_in_namespace):
    run_in_namespace(
        f"ip link set lo up; {CREATE_INTERFACE}",
        OPEN_WATCH
        + """
read_notifications()
run_ip("link add other type veth peer name other1")
run_ip("link set other up")
run_ip("addr add 192.0.2.9/24 dev other")
run_ip("link set other down")
run_ip("link del other")
run_ip("addr add 127.0.0.2/32 dev lo")
assert read_notifications() == []
for i in range(40):  # two messages in each turn, together more than one call reads
    run_ip(f"addr add 198.51.100.{i}/32 dev lo")
    run_ip(f"addr del 198.51.100.{i}/32 dev lo")
run_ip("addr add 192.0.2.1/24 dev w0")
assert lib.siw_llp_interface_watch_read(w) == 0, "one call read the messages of all interfaces"
assert read_notifications() == [ADDRS]
"""
        + CLOSE_WATCH,
    )


def test_an_interface_that_is_deleted_and_created_again_is_recognized_by_name(run_in_namespace):
    run_in_namespace(
        CREATE_INTERFACE,
        OPEN_WATCH
        + """
read_notifications()
run_ip("link del w0")
wait_for_notification(DOWN)
assert read_notifications() == []
run_ip("link add w00 type veth peer name w01")
run_ip("link set w00 up")
run_ip("addr add 192.0.2.2/24 dev w00")
assert read_notifications() == [], "an interface with a longer name was reported"
run_ip("link add w0 type veth peer name p0")
run_ip("link set p0 up")
wait_for_notification(DOWN)  # the new interface is down
run_ip("link set w0 up")
wait_for_notification(UP)
"""
        + CLOSE_WATCH,
    )


def test_an_interface_created_after_its_watch_is_reported(run_in_namespace):
    run_in_namespace(
        f"{NO_AUTOMATIC_ADDRESSES}; ip link set lo up",
        OPEN_WATCH
        + """
assert read_notifications() == []
run_ip("link add w0 type veth peer name p0")
run_ip("link set p0 up")
run_ip("link set w0 up")
wait_for_notification(UP)
"""
        + CLOSE_WATCH,
    )


def test_an_overflow_of_interface_notifications_is_reported(run_in_namespace):
    run_in_namespace(
        CREATE_INTERFACE,
        OPEN_WATCH
        + """
read_notifications()
import tempfile
with tempfile.NamedTemporaryFile("w", suffix=".ip") as batch:
    for i in range(4000):
        batch.write(f"addr {'add' if i % 2 == 0 else 'del'} 192.0.2.1/32 dev w0\\n")
    batch.flush()
    run_ip(f"-batch {batch.name}")
assert lib.SIW_LLP_WATCH_LOST in read_notifications()
run_ip("addr add 192.0.2.1/24 dev w0")
assert read_notifications() == [ADDRS]
"""
        + CLOSE_WATCH,
    )
