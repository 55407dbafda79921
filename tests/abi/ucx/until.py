"""Run a server until its output contains a text; interrupt it then, and return its exit status.

usage: until.py TEXT PROGRAM [WORD...]
"""

import signal
import subprocess
import sys

# A shell script starts background processes with SIGINT ignored, which the server would inherit.
signal.signal(signal.SIGINT, signal.SIG_DFL)
wanted, program = sys.argv[1].encode(), sys.argv[2:]
server = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
assert server.stdout is not None
for line in server.stdout:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    if wanted in line:
        server.send_signal(signal.SIGINT)
        wanted = b"\n\n"  # no line contains this text, so the server is interrupted only once
sys.exit(abs(server.wait()))
