"""Run a server until its output has a text; interrupt it then, and return its exit status.

usage: until.py TEXT PROGRAM [WORD...]
"""

import signal
import subprocess
import sys

wanted, program = sys.argv[1].encode(), sys.argv[2:]
server = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
assert server.stdout is not None
for line in server.stdout:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    if wanted in line:
        server.send_signal(signal.SIGINT)
        wanted = b"\n\n"  # once: no line has that
sys.exit(abs(server.wait()))
