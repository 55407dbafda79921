"""Memory regions: local and remote access, re-registration, import, and refused requests."""

import errno

from common import (
    ALL,
    check_call_is_refused,
    create_connected_endpoints,
    data_pattern,
    open_device,
    report_success,
)
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WR_RDMA_WRITE,
)
from pyverbs.mem_alloc import free, posix_memalign
from pyverbs.mr import MR
from pyverbs.pd import PD

SIZE = 3000

with open_device() as ctx:
    a, b = create_connected_endpoints(ctx)
    data = data_pattern(SIZE)
    a.mr.write(data, SIZE)
    assert a.mr.read(SIZE, 0) == data and a.mr.length == 4096

    def write_and_read_back(mr):
        """Write into a region of the other end, and return the contents of the region."""
        a.post_request(IBV_WR_RDMA_WRITE, SIZE, to=(mr.buf, mr.rkey))
        a.next_completion()
        return mr.read(SIZE, 0)

    target = MR(b.pd, 4096, ALL)
    assert write_and_read_back(target) == data
    # Re-registration replaces the memory of the region, and later its access rights.
    place = posix_memalign(8192)
    target.rereg(flags=IBV_REREG_MR_CHANGE_TRANSLATION, addr=place, length=8192)
    assert target.length == 8192
    a.post_request(IBV_WR_RDMA_WRITE, SIZE, to=(place, target.rkey))
    a.next_completion()
    other = PD(ctx)
    mine = MR(other, 4096, ALL)
    mine.rereg(flags=IBV_REREG_MR_CHANGE_PD, pd=b.pd)
    assert write_and_read_back(mine) == data
    imported = MR(b.pd, handle=mine.handle)
    assert (imported.lkey, imported.rkey) == (mine.lkey, mine.rkey)
    imported.unimport()

    check_call_is_refused(MR, b.pd, 4096, IBV_ACCESS_REMOTE_WRITE, code=errno.EINVAL)
    check_call_is_refused(MR, b.pd, 4096, 1 << 12, code=errno.EINVAL)
    target.rereg(flags=IBV_REREG_MR_CHANGE_ACCESS, access=IBV_ACCESS_LOCAL_WRITE)
    a.post_request(IBV_WR_RDMA_WRITE, SIZE, to=(place, target.rkey))
    a.next_completion(IBV_WC_REM_ACCESS_ERR)
    target.close()
    free(place)
report_success("mr")
