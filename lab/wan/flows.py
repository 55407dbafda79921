# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m lab.wan``: flows of siwarp and of the kernel's TCP on a shared lossy link.

The link is that of `siwarp wan`: two network namespaces with a relay between them, which applies
the same faults to the packets of all flows.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from siwarp.bench.runner import BenchError

__all__ = ["default_congestion_control", "measure_flows", "run_flow_sources"]

_B = "10.77.0.2"
#: Seconds for starting and ending the flows, in addition to the duration of the flows.
_MARGIN_S = 40


def default_congestion_control() -> str:
    """Return the name of the congestion control that the kernel's TCP uses by default."""
    path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return "unknown"


def _make_flow_command_line(role: str, kind: str, host: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "lab.wan.flow", role, kind, host, *more]


def measure_flows(
    flows: tuple[str, ...], seconds: float, faults: str, congestion: str = ""
) -> dict[str, Any]:
    """Run flows at the same time over a link with a fault plan; return the results of each flow.

    ``flows``: kinds, of ``tcp`` and ``rd``. ``congestion``: TCP's congestion control, if not the
    kernel's default. For each flow, the result has ``mbit_s``, ``share`` (of all flows together),
    and ``steps``: octets that the other end received in each tenth of a second.

    Raises:
        BenchError: a flow or the link failed.

    """
    sinks = " & ".join(shlex.join(_make_flow_command_line("sink", kind, _B)) for kind in flows)
    command = [sys.executable, "-m", "siwarp.cli", "wan", "--json", "--faults", faults]
    command += ["--in-b", f"{sinks} & wait", "--"]
    command += [sys.executable, "-m", "lab.wan.flows", _B, str(seconds), congestion]
    command += flows
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds + _MARGIN_S
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"the flows did not finish within {seconds + _MARGIN_S:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise BenchError(f"the flows failed: {last}")
    told, _, line = done.stdout.partition("\n")
    return {
        "faults": faults,
        "congestion_control": congestion or default_congestion_control(),
        "flows": _add_rates_and_link_shares(json.loads(told)),
        "line": json.loads(line),
    }


def _add_rates_and_link_shares(told: dict[str, Any]) -> dict[str, Any]:
    total = sum(flow["octets"] for flow in told.values())
    for flow in told.values():
        flow["mbit_s"] = flow["octets"] * 8 / flow["seconds"] / 1e6
        flow["share"] = flow["octets"] / total if total else 0.0
    return told


def run_flow_sources(
    host: str, seconds: float, congestion: str, flows: list[str]
) -> dict[str, Any]:
    """Run the flows' sources in namespace a; none sends before each has reached its sink."""
    with contextlib.ExitStack() as stack:
        started = []
        for kind in flows:
            flow = subprocess.Popen(
                _make_flow_command_line("source", kind, host, str(seconds), congestion),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(flow.wait)
            stack.callback(flow.kill)
            started.append(flow)
        for kind, flow in zip(flows, started, strict=True):
            assert flow.stdout is not None
            if flow.stdout.readline() != "ready\n":
                raise SystemExit(f"the flow {kind} did not reach its sink")
        for flow in started:
            assert flow.stdin is not None
            flow.stdin.write("go\n")
            flow.stdin.flush()
        said = [flow.communicate()[0] for flow in started]
    return {kind: json.loads(text) for kind, text in zip(flows, said, strict=True)}


if __name__ == "__main__":
    print(json.dumps(run_flow_sources(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:])))
