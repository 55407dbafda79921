"""A child process with RC queue pairs connected by QPN; each input line is a command in JSON."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.pair_harness import End
from harness.verbs_harness import Rig

from siwarp.verbs import QPAttr, QPState

host, ends = sys.argv[1], int(sys.argv[2])
rig = Rig(host)
made = [End(rig, host) for _ in range(ends)]
for line in sys.stdin:
    what, *words = json.loads(line)
    said = None
    if what == "ids":
        said = [end.host_and_qpn for end in made]
    elif what == "begin":
        for end in made:
            end.to_init_with_receives()
    elif what == "to_rts":
        for end, peer in zip(made, words[0], strict=True):
            end.to_rts((peer[0], peer[1]))
    elif what == "send":
        for end in made:
            end.send(words[0].encode())
    elif what == "reset":
        for end in made:
            end.qp.modify(QPAttr(qp_state=QPState.RESET))
            while end.cq.poll(16):
                pass
    elif what == "received":
        said = []
        for end in made:
            done = end.wait_for_sends(words[0], 60.0)
            assert all(wc.ok for wc in done), done
            came = next(wc for wc in done if wc.wr_id >= 100)
            said.append(end.mr.read(came.byte_len, (came.wr_id - 100) << 10).decode())
    else:
        raise SystemExit(f"no such word: {what}")
    print(json.dumps(said), flush=True)
