# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the paper states about each of its figures, and which parts of this study repeat it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIGURES", "TITLE", "PaperFigure"]

#: The paper.
TITLE = (
    "P. Lai, H. Subramoni, S. Narravula, A. Mamidala and D. K. Panda, "
    "Designing Efficient FTP Mechanisms for High Performance Data-Transfer over InfiniBand"
)


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, or a section with a statement that was measured.

    Attributes:
        number: the number of the figure or section.
        title: what the figure shows.
        stated: the numbers and trends that the paper states, in words.
        parts: the parts of this study that repeat it.
        verdict: ``same shape``, ``other shape`` or ``cannot be shown in software``.
        why: the reason for the verdict.

    """

    number: str
    title: str
    stated: str
    parts: tuple[str, ...]
    verdict: str
    why: str

    @property
    def name(self) -> str:
        """The name of the figure or section in the paper, such as Figure 5."""
        return f"{'Figure' if self.number.isdigit() else 'Section'} {self.number}"


FIGURES: tuple[PaperFigure, ...] = (
    PaperFigure(
        "2",
        "Bandwidth of the protocols, and GridFTP with more and more tuning",
        "The verbs reach more bandwidth than IPoIB and SDP (16 Gbit/s expected); GridFTP over "
        "either does not, however it is tuned.",
        (),
        "cannot be shown in software",
        "IPoIB and SDP are layers over an InfiniBand adapter. Here every octet of every channel "
        "passes a kernel socket, so the sockets are the faster side: see figure 5.",
    ),
    PaperFigure(
        "5",
        "Get and put by the size of the file, without delay",
        "FTP-ADTS needs up to 95% less time than GridFTP over IPoIB and is up to 181% faster "
        "than FTP-UDP, most for large files; put is like get.",
        ("get-size", "put-size"),
        "other shape",
        "the gain of the paper is zero copy. In software RD and RC use the same kernel as TCP "
        "and do more work, so that TCP is the fastest for files of every size; put is like get, "
        "as in the paper. UD, the paper's FTP-UDP, is slower than RD by two orders of magnitude, "
        "because Python handles each datagram of 1,184 octets: it has curves up to 16 MiB.",
    ),
    PaperFigure(
        "6",
        "Get of 32 MiB and of 256 MiB by the delay of the link",
        "FTP-ADTS keeps its rate up to 10 ms; the time of GridFTP grows steeply at 10 ms, and "
        "FTP-UDP is then better than GridFTP.",
        ("get-delay-32", "get-delay-256"),
        "other shape",
        "the delay costs each channel about the same here, since today's TCP adapts its "
        "windows. TCP falls behind only with losses, which the paper's link did not have (parts "
        "wan-lossy-13ms and others).",
    ),
    PaperFigure(
        "7",
        "Bandwidth of each transport by the delay of the link",
        "RC and UD verbs keep the link's 8 Gbit/s at every delay; TCP falls at 10 ms, UDP does "
        "not and is then better than TCP.",
        ("get-delay-256",),
        "other shape",
        "the relay, not the transport, limits the rate, to about 2 Gbit/s, and TCP no longer "
        "falls at 10 ms: Linux adapts its windows. UD keeps its rate at every delay, too, but "
        "Python limits it to some 10 Mbit/s.",
    ),
    PaperFigure(
        "8",
        "Bandwidth by the size of a unit",
        "Small and medium messages lose more bandwidth the longer the delay; units of 1 MiB do "
        "not, and IPoIB is limited to 64 KiB.",
        ("put-unit-0ms", "put-unit-1ms", "put-unit-10ms"),
        "other shape",
        "the cost of a unit at both ends, 0.16 to 0.19 ms, most of it in Python, limits small "
        "units at every delay: 2 KiB reach 0.1 Gbit/s without delay, 32 KiB 1.4, 512 KiB 8. The "
        "delay adds little, since the window has 256 units or 8 MiB. Above 1 MiB nothing is "
        "gained on loopback or on a link, and units of 4 MiB need four times the memory.",
    ),
    PaperFigure(
        "9",
        "CPU time of server and client for put",
        "FTP-ADTS needs up to six times less CPU than GridFTP and FTP-UDP; GridFTP's client is "
        "cheap because of sendfile.",
        ("cpu",),
        "cannot be shown in software",
        "the adapter does the work of the paper's verbs. Here the same CPUs copy the octets and "
        "compute the CRCs of the transport, which TCP does not have, so RD and RC need more CPU "
        "time than TCP, and UD, with a datagram for each 1,184 octets, a hundred times as much. "
        "The client is cheaper than the server also here.",
    ),
    PaperFigure(
        "10",
        "Replication of a Zipf trace by the delay of the link",
        "FTP-ADTS is up to 65% faster than FTP-UDP; both need more time at large delays, "
        "because the trace has many smaller files. Average size 66 MB.",
        ("trace",),
        "same shape",
        "the time grows with the delay for each channel, to three times at 10 ms. RD then needs "
        "1.3 s, and TCP with CUBIC 1.8 s; without delay TCP is faster, 0.4 s beside 0.6 s.",
    ),
    PaperFigure(
        "11",
        "Connecting and data of 1 to 16 files of 1 MiB, without and with the enhancements",
        "Persistent sessions pay for the connection only once; pipelining, buffer reuse and the "
        "registration cache save up to 55% of the time of 16 files.",
        ("features",),
        "same shape",
        "with a session for each file, connecting takes as long as the data and grows with the "
        "number of files; with one session it is paid once, and the data of 16 files take a "
        "quarter of the time. The registration cache serves memory of the program, not files; "
        "units are registered 4 MiB at a time, and stay registered while they are used.",
    ),
    PaperFigure(
        "IV-B",
        "Sends, or memory semantics",
        "Sends are as fast as RDMA operations and need no exchange of addresses and no further "
        "message about the completion; on a long link RDMA has no advantage.",
        ("immediate",),
        "same shape",
        "with 8 units in flight both carry the same rate at every delay (ratio 0.95 to 1.01), "
        "so that Sends, which need no addresses, are the simpler choice.",
    ),
)
