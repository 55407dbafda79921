"""Completion channels: a completion queue raises one event each time that it was armed."""

from common import End, data_pattern, open_device, report_success
from pyverbs.cq import CQ, CompChannel
from pyverbs.enums import IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WR_SEND

SIZE, COUNT = 800, 20


def create_armed_channel_and_cq(ctx):
    """Return an armed completion queue and its channel."""
    channel = CompChannel(ctx)
    cq = CQ(ctx, 100, None, channel)
    cq.req_notify()
    return channel, cq


with open_device() as ctx:
    (mine, a_cq), (theirs, b_cq) = (
        create_armed_channel_and_cq(ctx),
        create_armed_channel_and_cq(ctx),
    )
    a, b = End(ctx, cq=a_cq), End(ctx, cq=b_cq)
    a.connect(ctx, b)
    b.connect(ctx, a)
    for i in range(COUNT):
        data = data_pattern(SIZE, i)
        a.mr.write(data, SIZE)
        b.post_receive(SIZE, wr_id=i)
        a.post_request(IBV_WR_SEND, SIZE)
        for channel, end in ((theirs, b), (mine, a)):
            channel.get_cq_event(end.cq)  # waits for the event and acknowledges it
            end.cq.req_notify()
            came = end.next_completion()
            assert end is a or (came.wr_id, came.byte_len) == (i, SIZE)
        assert b.mr.read(SIZE, 0) == data

    # A queue that is armed for solicited events raises no event for an ordinary message.
    channel = CompChannel(ctx)
    cq = CQ(ctx, 100, None, channel)
    a, b = End(ctx), End(ctx, cq=cq)
    a.connect(ctx, b)
    b.connect(ctx, a)
    cq.req_notify(solicited_only=True)
    for wr_id, flags in enumerate((IBV_SEND_SIGNALED, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED)):
        b.post_receive(SIZE, wr_id=wr_id)
        a.post_request(IBV_WR_SEND, SIZE, send_flags=flags)
        a.next_completion()
    channel.get_cq_event(cq)
    assert [b.next_completion().wr_id for _ in range(2)] == [0, 1]
report_success("channel")
