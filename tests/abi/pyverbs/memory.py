"""Protection domains, regions, memory windows."""

from common import ALL, device, done
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_MW_TYPE_1, IBV_MW_TYPE_2
from pyverbs.mr import MR, MW
from pyverbs.pd import PD

with device() as ctx, PD(ctx) as pd:
    mr = MR(pd, 10000, ALL)
    mr.write("text", 4, 9000)
    assert mr.read(4, 9000) == b"text"
    assert mr.lkey and mr.rkey
    mr.rereg(flags=4, access=IBV_ACCESS_LOCAL_WRITE)  # IBV_REREG_MR_CHANGE_ACCESS
    for kind in (IBV_MW_TYPE_1, IBV_MW_TYPE_2):
        with MW(pd, kind) as window:
            assert window.rkey != mr.rkey
    assert mr.read(4, 9000) == b"text"
done("memory")
