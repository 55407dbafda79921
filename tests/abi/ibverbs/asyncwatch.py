"""Run ibv_asyncwatch while its interface gains and loses an address; both events must be printed.

usage: asyncwatch.py DEVICE, as root of a network namespace
"""

import subprocess
import sys

device = sys.argv[1]
interface = device.removeprefix("siw_")
ADDRESS = "2001:db8:77::77/128"


def print_output_until(lines, text):
    """Print the output of a program up to the first line that contains a text."""
    for line in lines:
        print(line, end="", flush=True)
        if text in line:
            return
    sys.exit(f"it ended without a line that has {text!r}")


watch = subprocess.Popen(
    ["ibv_asyncwatch", "-d", device], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
)
try:
    print_output_until(watch.stdout, "async event FD")
    for words in (("add", ADDRESS, "nodad"), ("del", ADDRESS)):
        subprocess.run(["ip", "address", *words, "dev", interface], check=True)
        print_output_until(watch.stdout, "GID_CHANGE")
    print("both changes were seen")
finally:
    watch.kill()
    watch.wait()
