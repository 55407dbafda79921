"""An error on a UD queue pair, read from its error queue, and the recovery from it.

    python ud_errors.py

One queue pair sends another a message that the other does not accept. The queue pair that detected
the error goes to the Error state and reports it to the sender; both read it from their error
queues, the first is reset, and traffic continues.
"""

from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    ErrorOrigin,
    ErrorPolicy,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)


def print_qp_error_queue(qp: QP) -> None:
    """Read all entries of the error queue."""
    while reports := qp.errors():
        for report in reports:
            if report.origin == ErrorOrigin.REPORTED:
                print(f"the peer refused request {report.wr_id}: {report.reason}")
            else:
                print(f"refused a peer's message: {report.reason}")


def recover_from_err(qp: QP, cq: CQ, receive: RecvWR) -> None:
    """Go from ERR to RTS. Reap flushed requests first: the reset discards their completions."""
    for wc in cq.wait(timeout=10):
        print(f"receive {wc.wr_id}: {WCStatus(wc.status).name}")
    qp.modify(QPAttr(qp_state=QPState.RESET))
    qp.to_rts()  # to_rts() passes through INIT, RTR and RTS
    qp.post_recv(receive)


def main() -> None:
    with (
        Context("127.0.0.1") as ctx,
        PD(ctx) as pd,
        CQ(ctx, channel=CompChannel(ctx)) as cq,
        MR(pd, bytearray(b"after the error".ljust(128))) as mr,
        QP(pd, QPInitAttr(scq=cq, error_policy=ErrorPolicy.ERROR)) as sender,
        QP(pd, QPInitAttr(QPType.UD, scq=cq, error_policy=ErrorPolicy.ERROR)) as target,
        AH(pd, target.addr) as to,
    ):
        receive = RecvWR(1, sg=[mr.sge(64, 64)])
        text = [mr.sge(0, len("after the error"))]
        for qp in (sender, target):
            qp.to_rts()
        target.post_recv(receive)

        # The target was created without max_write_records, so it accepts no Write-Records.
        sender.post_send(SendWR(17, WROpcode.RDMA_WRITE_RECORD, sg=text, ah=to, send_flags=0))
        for _ in range(2):  # one event for each queue pair, in either order
            event = ctx.get_async_event(timeout=10)
            if event is None:
                raise TimeoutError("nothing was told")
            with event:
                print(f"event: {event.event_type.name}")
                print_qp_error_queue(event.element)
                if event.element is target:
                    recover_from_err(target, cq, receive)

        sender.post_send(SendWR(18, sg=text, ah=to, send_flags=0))
        (wc,) = cq.wait(timeout=10)
        print(f"received: {mr.read(wc.check().byte_len, 64).decode()}")


if __name__ == "__main__":
    main()
