"""`siwarp wan`: two network namespaces and an emulated link that follows a fault plan."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import environment_without_sanitizer, run_siwarp_command
from harness.siwarp_process import COMMAND
from namespaces import wan_harness
from pace import scale_limit, slowdown_factor

ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.77.0.2", 7))
while True:
    data, whom = s.recvfrom(2000)
    s.sendto(data, whom)
"""

# Program: sends until the first answer arrives, because the other end may not have started yet.
PING = """
import json, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.77.0.2", 7))
s.settimeout(0.2)
for attempt in range(100):
    try:
        s.send(b"there?")
        s.recv(100)
        break
    except (TimeoutError, ConnectionRefusedError):
        time.sleep(0.02)
n, times, lost = int(sys.argv[1]), [], 0
s.settimeout(float(sys.argv[2]))
for i in range(n):
    began = time.monotonic()
    s.send(b"%d" % i)
    try:
        while s.recv(100) != b"%d" % i:
            pass
        times.append(time.monotonic() - began)
    except TimeoutError:
        lost += 1
print(json.dumps([times, lost]))
"""

FLOW_B = """
import socket
listener = socket.create_server(("10.77.0.2", 9))
conn, _ = listener.accept()
while conn.recv(1 << 16):
    pass
"""

FLOW_A = """
import json, socket, sys, time
for attempt in range(500):
    try:
        s = socket.create_connection(("10.77.0.2", 9))
        break
    except OSError:
        time.sleep(0.02)
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
octets, began = 0, time.monotonic()
while time.monotonic() - began < float(sys.argv[1]):
    octets += s.send(bytes(65536))
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(json.dumps(octets * 8 / (time.monotonic() - began) / 1e6))
"""

pytestmark = pytest.mark.scales


@pytest.fixture(autouse=True)
def skip_without_tun() -> None:
    """Skip the tests on a machine where the emulated link cannot be created."""
    wan_harness.skip_without_tun_device()


def python_command(code: str) -> str:
    return "exec " + shlex.join([sys.executable, "-c", code])


def run_siwarp_wan(plan: str, *command: str, in_b: str | None = None) -> Any:
    there = ["--in-b", in_b] if in_b else []
    return run_siwarp_command("wan", "--faults", plan, *there, "--", *command)


def test_an_emulated_line_delays_both_directions_and_counts_packets() -> None:
    done = run_siwarp_wan(
        "delay=20ms", sys.executable, "-c", PING, "5", "5", in_b=python_command(ECHO)
    )
    assert done.returncode == 0, done.stderr
    times, lost = json.loads(done.stdout)
    assert lost == 0
    assert 0.04 <= min(times) < 0.3
    assert "siwarp wan: a to b: " in done.stderr
    assert "siwarp wan: b to a: " in done.stderr


def test_losses_of_one_direction_equal_the_missing_answers() -> None:
    plan = "tx:loss=10%,seed=3,peer=10.77.0.2:7"
    done = run_siwarp_wan(
        plan, sys.executable, "-c", PING, "200", "0.05", in_b=python_command(ECHO)
    )
    assert done.returncode == 0, done.stderr
    _, lost = json.loads(done.stdout)
    assert 2 <= lost <= 60
    said = [line for line in done.stderr.splitlines() if " a to b: " in line]
    counted = int(said[0].split(" octets, ")[1].split()[0])
    # An answer that arrives too late counts as missing, too; a loss before the first answer does
    # not count.
    assert counted - 3 <= lost <= counted + 10
    assert "lost" not in next(line for line in done.stderr.splitlines() if " b to a: " in line)


def test_a_kernel_tcp_flow_uses_an_emulated_line_of_50_mbit_fully() -> None:
    plan, before = "rate=50Mbit,delay=5ms", slowdown_factor()
    done = run_siwarp_wan(plan, sys.executable, "-c", FLOW_A, "2", in_b=python_command(FLOW_B))
    assert done.returncode == 0, done.stderr
    # Without other load the flow reaches 46 Mbit/s; on a busy machine the relay may be woken late.
    assert 25 / max(before, slowdown_factor()) <= json.loads(done.stdout) <= 50


# While ARP resolves a neighbour, the kernel keeps only some of the packets for the neighbour, and
# drops the others before they reach the queue of the link. Therefore the program first sends one
# packet; the ICMP error that answers this packet shows that ARP has finished.
BURST = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(30)
s.connect(("10.77.0.2", 7))
s.send(bytes(1000))
try:
    s.recv(1)
except ConnectionRefusedError:
    pass
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(199):
    s.sendto(bytes(1000), ("10.77.0.2", 7))
"""


@pytest.mark.parametrize("limit", ["10", "10KB"])
def test_the_queue_of_a_rate_limited_line_drops_packets_beyond_its_limit(limit: str) -> None:
    done = run_siwarp_wan(f"rate=100kbit,limit={limit}", sys.executable, "-c", BURST)
    assert done.returncode == 0, done.stderr
    said = next(line for line in done.stderr.splitlines() if " a to b: " in line)
    assert said.startswith("siwarp wan: a to b: 200 packets, 205600 octets, ")
    # Ten packets are queued, and one packet is transmitted every twelfth of a second.
    full = int(said.split(" dropped, queue full")[0].split()[-1])
    assert 170 <= full <= 191


#: Stops the relay, which is the parent process, sends a burst and exits before the relay continues.
BURST_WITHOUT_RELAY = BURST.replace(
    "for i in range(199)",
    """import os, signal, subprocess
relay = os.getppid()
os.kill(relay, signal.SIGSTOP)
subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {relay}"])
for i in range(199)""",
)


def test_packets_of_a_program_that_has_ended_are_all_relayed() -> None:
    done = run_siwarp_wan("", sys.executable, "-c", BURST_WITHOUT_RELAY)
    assert done.returncode == 0, done.stderr
    assert "siwarp wan: a to b: 200 packets, 205600 octets" in done.stderr


def test_siwarp_ping_works_over_an_emulated_line() -> None:
    server = shlex.join([*COMMAND, "ping", "--server", "--addr", "10.77.0.2"])
    code = (
        "import subprocess, sys\n"
        "for attempt in range(20):\n"
        f"    done = subprocess.run({[*COMMAND, 'ping', '-n', '20', '--json', '10.77.0.2']},\n"
        "        capture_output=True, text=True)\n"
        "    if done.returncode == 0:\n"
        "        break\n"
        "print(done.stdout)\n"
    )
    done = run_siwarp_wan("delay=1ms", sys.executable, "-c", code, in_b=server)
    result = json.loads(done.stdout[done.stdout.index("{") :])
    # The client may send its first requests before the server has started.
    assert 0 < result["received"] <= 20
    assert result["rtt_us"]["min"] >= 2000


#: Programs with eight connections in four lanes of both devices. The first argument is the path of
#: a FIFO, over which the listening program sends its TCP port, and the second the path of tests/.
LANES_B = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harness.lanes_harness import LaneRig
from harness.rc_harness import End, ListenerAndConnector
from siwarp.cm import ConnParam
rig = LaneRig("10.77.0.2")
connector = ListenerAndConnector(rig, host="10.77.0.2")
Path(sys.argv[1]).write_text(str(connector.address[1]))
ends = []
for i in range(8):
    request = connector.next_connection_request(60)
    rig.lane = i % 4
    end = End(rig, request.id, connector.p_channel, size=1 << 16)
    ends.append(end)
    end.id.accept(ConnParam(private_data=f"{end.mem.addr} {end.mem.rkey}".encode()))
    assert end.next_cm_event(60).status == 0
while True:
    connector.p_channel.get_event(60)
"""

# Program: in each of five turns, all connections write a text to the peer and read it back.
LANES_A = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harness.lanes_harness import LaneRig
from harness.rc_harness import READ, WRITE, End
from harness.verbs_harness import poll
from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import RemoteBuffer
port = int(Path(sys.argv[1]).read_text())
rig = LaneRig("10.77.0.1")
channel = CMEventChannel(rig.ctx)
ends = []
for i in range(8):
    rig.lane = i % 4
    end = End(rig, CMID(channel), channel, size=1 << 16)
    end.id.connect(("10.77.0.2", port))
    addr, rkey = end.next_cm_event(60).check().private_data.split()
    ends.append((end, RemoteBuffer(int(addr), 1 << 16, int(rkey))))
began = time.monotonic()
for turn in range(5):
    for i, (end, remote) in enumerate(ends):
        end.mem.write(f"{i} {turn}".encode().ljust(1000))
        end.post(WRITE, 1, length=1000, remote=remote)
        end.post(READ, 2, offset=32768, length=1000, remote=remote)
    for i, (end, _) in enumerate(ends):
        assert all(wc.ok for wc in poll(end.scq, 2))
        assert end.mem.read(1000, 32768) == f"{i} {turn}".encode().ljust(1000)
print(json.dumps(time.monotonic() - began))
"""


def test_the_round_trips_of_connections_in_several_lanes_overlap_on_a_long_line(
    tmp_path: Path, root: Path
) -> None:
    os.mkfifo(tmp_path / "port")
    command_a, command_b = (
        [sys.executable, "-c", code, str(tmp_path / "port"), str(root / "tests")]
        for code in (LANES_A, LANES_B)
    )
    done = run_siwarp_wan("delay=20ms", *command_a, in_b="exec " + shlex.join(command_b))
    assert done.returncode == 0, done.stderr
    # Each turn takes a round trip of 40 ms; one connection after the other would need 1.6 s.
    assert 0.2 <= json.loads(done.stdout) < 1.6


def test_wan_returns_the_exit_status_of_its_command_and_ends_the_other_command() -> None:
    before, limit = time.monotonic(), scale_limit(30)
    done = run_siwarp_wan("", "sh", "-c", "exit 7", in_b="sleep 1000")
    assert done.returncode == 7
    assert time.monotonic() - before < limit
    assert run_siwarp_wan("", "/nonexistent").returncode == 127


def test_the_error_for_an_invalid_fault_plan_names_the_position() -> None:
    done = run_siwarp_wan("loss=1%; delay=x", "true")
    assert done.returncode == 2
    # The message is printed in a box, which may break its lines.
    assert "clause 2, character 16" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("plan", ["tx:delay=1ms; reset=5s", "reset=1MB", "rx:short=10%"])
def test_fault_plans_for_streams_are_refused_on_a_line_of_packets(plan: str) -> None:
    done = run_siwarp_wan(plan, "true")
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "reset= and short= apply only to siwarp's own streams" in said


def test_the_help_of_wan_explains_the_syntax_of_fault_plans() -> None:
    done = run_siwarp_command("wan", "--help")
    assert done.returncode == 0, done.stderr
    for name in ("loss=", "burst=", "blackout=", "limit=", "peer=ADDR", "tx:", "reset="):
        assert name in done.stdout


@pytest.mark.parametrize("plan", ["peer=[/x]", "[/b]", "[bold]=1"])
def test_a_fault_plan_with_brackets_is_refused_with_a_position(plan: str) -> None:
    done = run_siwarp_wan(plan, "true")
    assert done.returncode == 2
    assert "clause 1, character" in " ".join(done.stderr.replace("│", " ").split())


def test_a_command_at_one_end_of_a_line_can_run_a_command_at_the_other_end() -> None:
    enter = shlex.join([*COMMAND, "wan", "--enter", "b", "--", "ip", "-br", "addr"])
    done = run_siwarp_wan("", "sh", "-c", enter)
    assert "10.77.0.2/24" in done.stdout, done.stderr
    assert run_siwarp_command("wan", "--enter", "b", "--", "true").returncode == 2


def test_without_root_wan_creates_its_own_user_namespace(build_dir: Path, tmp_path: Path) -> None:
    """If the tests run as root, run the command as nobody, with a tun device that is open to all
    users, as is usual.
    """
    program = next(build_dir.rglob("siwarp-wan"))
    ends = "loss=1% 1500 1 '' sh -c 'id -u; ip -br addr'"
    as_nobody = (
        "set -e; mount -t tmpfs none /mnt; mknod /mnt/tun c 10 200; chmod 666 /mnt/tun\n"
        f"cp {shlex.quote(str(program))} /mnt/siwarp-wan; chmod 755 /mnt/siwarp-wan /mnt\n"
        "mount --bind /mnt/tun /dev/net/tun\n"
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups"
        f" /mnt/siwarp-wan {ends}\n"
    )
    if os.geteuid() == 0:
        command = ["unshare", "-m", "sh", "-c", as_nobody]
    else:
        command = ["sh", "-c", f"exec {shlex.quote(str(program))} {ends}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env=environment_without_sanitizer(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0\n")
    assert "10.77.0.1/24" in done.stdout
    assert '"a_to_b": {"packets": ' in done.stdout
