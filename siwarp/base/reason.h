/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/reason.h - why a function of the public interface refused a call: a code and up to four
 * numbers, stored per thread. Recording them formats nothing and allocates nothing; siw_reason()
 * creates the text.
 *
 * A function that refuses a call records the reason and returns the negative errno value in one
 * statement:
 *
 * 	return siw_refuse(SEND_SGE, wr->num_sge, qp->cap.max_send_sge);
 *
 * A public function begins with siw_reason_begin() and returns siw_refused(err) if err may come
 * from a function that recorded no reason; the reason is then derived from the errno value.
 * Functions that post and poll skip siw_reason_begin(), and record a reason with each refusal.
 */
#ifndef SIW_BASE_REASON_H
#define SIW_BASE_REASON_H

#include <errno.h>
#include <stdint.h>

/*
 * The table of reasons: name, errno value, text. {0} to {3} stand for the numbers, printed in
 * decimal or in the format after the colon: hex; text (a string that is valid as long as its
 * thread); errno, state, states, steps, type, attrs (as in <siwarp/siw.h>; a set of states has one
 * bit per state, a set of steps has bit 8 * from + to).
 */
#define SIW_REASONS(X)                                                                             \
	/* ---- all objects */                                                                     \
	X(NULL_ARGUMENT, EINVAL, "{0:text} is NULL: give one")                                     \
	X(STALE, ESTALE,                                                                           \
	  "it was opened before fork, in the parent, and works only there, or its device was "     \
	  "closed by force: open the device in this process")                                      \
	X(DESTROYED, EINVAL, "it was destroyed before: make a new one")                            \
	X(NEGATIVE, EINVAL, "{0:text} is {1}: give 0 or more")                                     \
	X(DEVICE_FULL, ENOMEM,                                                                     \
	  "the device holds {1} of them at the most ({0:text}): end one that is not needed first") \
	X(RANGE, EINVAL, "{0:text}={1} is not from {2} to {3}: give one of these")                 \
	X(NOT_CONNECTED, ENOTCONN, "it is not connected: connect it first")                        \
	X(TIME_OVER, EAGAIN, "nothing came in the time allowed: wait longer, or ask again")        \
	X(INTERRUPTED, EINTR, "a signal came while waiting: call again")                           \
	/* ---- devices, faults, captures */                                                       \
	X(NO_DEVICE, ENODEV, "no device has this address: see siw_get_device_list")                \
	X(CONTEXT_BUSY, EBUSY,                                                                     \
	  "{0} PDs, {1} CQs, {2} completion channels and {3} event channels of it are open: end "  \
	  "them first")                                                                            \
	X(FAULTS_PLAN, EINVAL, "it is no plan of faults: {0:text}")                                \
	X(FAULTS_SETTING, EINVAL, "SIWARP_FAULTS is no plan of faults: {0:text}")                  \
	X(CAPTURE_ON, EBUSY,                                                                       \
	  "a capture is on already: SIWARP_CAPTURE or another siw_capture_start began it, and "    \
	  "siw_capture_stop ends it")                                                              \
	X(CAPTURE_FILE, ESPIPE, "it is no regular file: capture to one, and read that")            \
	X(ADDRESS_TEXT, EINVAL,                                                                    \
	  "it is no numeric IPv4 or IPv6 address: give one like 127.0.0.1 or fe80::1%eth0")        \
	X(ADDRESS_FAMILY, EINVAL, "the address has family {0}: give one of AF_INET or AF_INET6")   \
	/* ---- protection domains, memory, windows */                                             \
	X(PD_BUSY, EBUSY,                                                                          \
	  "{0} MRs, {1} MWs, {2} QPs or SRQs and {3} AHs of it are open: end them first")          \
	X(MR_LENGTH, EINVAL, "{0} octets, but max_mr_size is {1}: register it in parts")           \
	X(MR_WRAPS, EINVAL, "{0} octets from there on reach beyond the last address: give fewer")  \
	X(MR_ABSENT, EFAULT,                                                                       \
	  "the memory is not there, or not writable as the access asks: register memory that "     \
	  "exists, with rights that it has")                                                       \
	X(MR_ACCESS, EINVAL,                                                                       \
	  "access {0:hex} has bits that are no rights: give a set of "                             \
	  "enum siw_access_flags")                                                                 \
	X(MR_LOCAL_WRITE, EINVAL,                                                                  \
	  "access {0:hex} lets peers write and this end not: give SIW_ACCESS_LOCAL_WRITE too")     \
	X(MR_INVALIDATE, EINVAL,                                                                   \
	  "only the peer of one QP may invalidate a region: say which, with siw_reg_mr_qp")        \
	X(MR_NO_WINDOWS, EINVAL,                                                                   \
	  "a region that its peer may invalidate takes no windows: leave SIW_ACCESS_MW_BIND or "   \
	  "SIW_ACCESS_REMOTE_INVALIDATE out")                                                      \
	X(MR_ZERO_BASED, EINVAL,                                                                   \
	  "its offsets cannot count from 0 and from {0:hex}: leave SIW_ACCESS_ZERO_BASED out, or " \
	  "give iova 0")                                                                           \
	X(MR_QP_TYPE, EINVAL,                                                                      \
	  "a region for one QP is for an RC, UC or RD one, not for UD: use siw_reg_mr")            \
	X(MR_BUSY, EBUSY,                                                                          \
	  "a request that uses it is on its way: poll for its completion, or end that QP, first")  \
	X(MR_WINDOWS, EBUSY,                                                                       \
	  "a window is bound to it, or a bind to it is posted: end or invalidate the "             \
	  "window first")                                                                          \
	X(MR_GONE, ENOENT, "it was deregistered before: register the memory anew")                 \
	X(REREG_FLAGS, EINVAL, "flags {0:hex}: say what to change, by enum siw_rereg_mr_flags")    \
	X(REREG_PD, EINVAL, "the new PD is none of the same context: give one of that")            \
	X(REREG_OF_QP, EINVAL,                                                                     \
	  "a region that is bound to a QP stays in that one's PD: leave the "                      \
	  "PD as it is")                                                                           \
	X(MW_TYPE, EINVAL, "type is SIW_MW_TYPE_1 or SIW_MW_TYPE_2, not {0}")                      \
	X(MW_BUSY, EBUSY,                                                                          \
	  "a bind of it is posted and has not taken effect: poll for its completion, or end that " \
	  "QP, first")                                                                             \
	X(AH_BUSY, EBUSY,                                                                          \
	  "a message to it is posted that UDP has not taken: poll for its completion, or "         \
	  "end that QP, first")                                                                    \
	/* ---- completion queues, channels, shared receive queues */                              \
	X(CHANNEL_BUSY, EBUSY, "{0} CQs use it: end them first")                                   \
	X(CQ_SIZE, EINVAL, "cqe is from 1 to {1} (max_cqe), not {0}")                              \
	X(CQ_VECTOR, EINVAL, "comp_vector is {0}: a device has one, which is 0")                   \
	X(CQ_CHANNEL, EINVAL,                                                                      \
	  "the channel is another device's: give a channel of the same context")                   \
	X(CQ_BUSY, EBUSY, "{0} queues of QPs use it: destroy these first")                         \
	X(CQ_HOLDS, EINVAL,                                                                        \
	  "{1} completions are in it, and cqe is {0}: poll it first, or give more")                \
	X(CQ_OVERFLOW, EOVERFLOW,                                                                  \
	  "more completed than the CQ holds: its QPs are in the error state; make them anew on a " \
	  "CQ that holds all their requests")                                                      \
	X(CQ_NO_CHANNEL, EINVAL, "it has no channel: make it with one of siw_create_comp_channel") \
	X(SRQ_LIMIT, EINVAL,                                                                       \
	  "srq_limit={0} is not from 0 to {1} (max_wr): give less, or make a larger SRQ")          \
	X(SRQ_MASK, EINVAL,                                                                        \
	  "mask {0:hex} has bits that are no attributes: give a limit, a size, or both")           \
	X(SRQ_SHRINKS, EINVAL,                                                                     \
	  "max_wr {0} is less than the {1} receives that are posted: give at least that")          \
	X(SRQ_BUSY, EBUSY, "{0} QPs use it: destroy these first")                                  \
	X(SRQ_FULL, ENOMEM, "all {0} receives are posted: poll the CQs first")                     \
	X(SRQ_SGE, EINVAL, "{0} elements, but the SRQ takes {1} (max_sge): make it with more")     \
	X(SGE_LIST, EINVAL,                                                                        \
	  "the request has {0} elements, but its sg_list is NULL: say where they are")             \
	/* ---- queue pairs: creation, changes, end */                                             \
	X(QP_TYPE, EINVAL, "qp_type is SIW_QPT_RC, UC, UD or RD, not {0}")                         \
	X(QP_RECORDS, EINVAL, "max_write_records={0}: it is a UD or RD QP's, from 0 to {1}")       \
	X(QP_PERSONA, EINVAL, "persona is one of enum siw_persona, not {0}")                       \
	X(QP_POLICY, EINVAL, "error_policy is one of enum siw_error_policy, not {0}")              \
	X(QP_POLICY_QKEY, EINVAL,                                                                  \
	  "error_policy error needs a Q_Key that is not 0: else anybody's datagram ends it; "      \
	  "give a random Q_Key, or policy message")                                                \
	X(QP_CQ, EINVAL,                                                                           \
	  "{0:text} is NULL: a QP needs a CQ for its sends and one for its receives")              \
	X(QP_CONTEXT, EINVAL,                                                                      \
	  "{0:text} is of another context than the PD: make both on one context")                  \
	X(QP_CAP, EINVAL, "{0:text}={1}: the device's limits (siw_query_device) say {2:text}={3}") \
	X(QP_NO_DESCRIPTORS, EMFILE,                                                               \
	  "no file descriptors are left, and a UD QP takes one for its socket: raise "             \
	  "`ulimit -n`, or let up to 256 share one by siw_qp_init_attr.shared_socket_qp")          \
	X(SHARE_TYPE, EINVAL, "only UD QPs share a socket: leave shared_socket_qp out")            \
	X(SHARE_ADDRESS, EINVAL,                                                                   \
	  "shared_socket_qp and addr are both given: the socket has its address already, "         \
	  "so leave addr out")                                                                     \
	X(SHARE_CRC, EINVAL,                                                                       \
	  "the QP that gives its socket as shared_socket_qp has no_crc={0}: give the same")        \
	X(SHARE_CLOSED, EINVAL, "the QP that shared_socket_qp names has no socket: make it anew")  \
	X(SHARE_FULL, ENOSPC,                                                                      \
	  "{0} QPs share this socket: begin another one with a QP that has no shared_socket_qp")   \
	X(QP_IN_GROUPS, EBUSY, "it is a member of {0} multicast groups: siw_detach_mcast first")   \
	X(QP_STATE_VALUE, EINVAL, "{0} is no state: use enum siw_qp_state")                        \
	X(QP_STEP, EINVAL,                                                                         \
	  "no step leads to {1:state} from {0:state}: it goes to {2:states}, or to RESET "         \
	  "or ERR as from any: step there first")                                                  \
	X(QP_STEP_OUT, EINVAL,                                                                     \
	  "no step leads to {1:state} from {0:state}: it goes to RESET or ERR as from any: step "  \
	  "there first")                                                                           \
	X(QP_STEP_RC, EINVAL,                                                                      \
	  "no step leads to {1:state} from {0:state}: <siwarp/cm.h> connects an RC QP: "           \
	  "siw_cm_bind_qp, then siw_cm_connect or siw_cm_accept")                                  \
	X(QP_MASK, EINVAL, "{0:hex} of the mask is no attribute: use enum siw_qp_attr_mask")       \
	X(QP_ATTR_TYPE, EINVAL, "this step does not take {0:attrs}: no {1:type} QP has it")        \
	X(QP_ATTR_STEP, EINVAL, "this step does not take {0:attrs}: set it in {1:steps}")          \
	X(QP_CUR_STATE, EINVAL,                                                                    \
	  "cur_qp_state is {1:state}, not {0:state}: look at qp_state first")                      \
	X(QP_ACCESS, EINVAL,                                                                       \
	  "qp_access_flags {0:hex} has bits that are no rights: use enum siw_access_flags")        \
	X(QP_ORD, EINVAL,                                                                          \
	  "max_rd_atomic={0}: of a connection it is from {1} to {2}, what both ends agreed on, "   \
	  "which initiator_depth of siw_cm_connect asks for")                                      \
	X(QP_PATH_MTU, EINVAL,                                                                     \
	  "path_mtu={0} is neither 256 to 65535 octets nor 1 to 5 nor 0: leave it out, and the "   \
	  "route says")                                                                            \
	X(QP_FD, EINVAL, "fd {0} must be a UDP socket that is bound: bind it first")               \
	X(QP_FD_CLOSED, EBADF, "fd {0} is no open descriptor: give a UDP socket that is bound")    \
	X(QP_FD_SHARED, EINVAL,                                                                    \
	  "a QP that shares its socket keeps it: give fd to a QP that has one of its own")         \
	X(QP_FD_GROUPS, EINVAL,                                                                    \
	  "a QP that is a member of a multicast group keeps its socket: siw_detach_mcast first")   \
	X(UC_PEER, EINVAL, "to RTR a UC QP needs to know its peer: give ah_addr (SIW_QP_AV)")      \
	X(UC_PORT, EINVAL, "neither dest_qp_num nor ah_addr has a port: give one of them")         \
	X(UC_FAMILY, EAFNOSUPPORT,                                                                 \
	  "the peer's address is IPv6 and the QP's IPv4, or the other way round: make the "        \
	  "QP with siw_qp_init_attr.addr of the peer's kind")                                      \
	X(GRH_TYPE, EINVAL, "grh is a UD QP's, and this is a {0:type} one: leave it out")          \
	X(EVERY_TYPE, EINVAL,                                                                      \
	  "every_addr is a UD or UC QP's, and this is a {0:type} one: leave it out")               \
	X(EVERY_ADDRESS, EINVAL,                                                                   \
	  "every_addr and an address are both given: leave one of them out; addr.port_be alone "   \
	  "says the port")                                                                         \
	X(QP_FD_EVERY, EINVAL, "a QP with every_addr has a socket at each address: leave fd out")  \
	X(UC_SOURCE, EINVAL,                                                                       \
	  "the QP has no socket at ah_source, or none for a peer of that kind: give the address "  \
	  "that it is bound to, or make it with every_addr")                                       \
	X(PAIR_TYPE, EINVAL, "by_qpn is an RC QP's, and this is a {0:type} one: leave it out")     \
	X(PAIR_PEER, EINVAL,                                                                       \
	  "to RTR an RC QP with by_qpn needs its peer: give ah_addr (SIW_QP_AV) and dest_qp_num "  \
	  "(SIW_QP_DEST_QPN)")                                                                     \
	X(PAIR_QPN, EINVAL, "dest_qp_num={0} is no QPN: give siw_qp_num of the peer's QP")         \
	X(PAIR_SOURCE, EINVAL,                                                                     \
	  "the device has no address as ah_source says, of the peer's family: give one of "        \
	  "siw_query_device_info")                                                                 \
	X(PAIR_PORTS, EADDRINUSE,                                                                  \
	  "no TCP port is free for its QPN: end QPs, or let settings rc_port_first and "           \
	  "rc_port_last allow more ports")                                                         \
	X(MCAST_TYPE, EINVAL, "only UD QPs receive from groups, and this is a {0:type} one")       \
	X(MCAST_ADDRESS, EINVAL,                                                                   \
	  "it is no multicast address: give one of 224.0.0.0/4 or ff00::/8")                       \
	X(MCAST_FAMILY, EINVAL,                                                                    \
	  "the QP is bound to an {0:text} address: a group has to be of the same family")          \
	X(MCAST_MEMBER, EINVAL, "it is no member: leave only groups that it joined")               \
	X(MCAST_PORT, EADDRINUSE,                                                                  \
	  "another program has the port of all groups (setting mcast_port) for every "             \
	  "address: end it, or set another one at all members")                                    \
	X(DATAGRAMS_ONLY, EINVAL, "only {0:text} QPs have that, and this is a {1:type} one")       \
	X(RECORD_ID, EINVAL, "wr_id 0 is no Write-Record's: give that of its completion")          \
	X(RECORD_GONE, ENOENT,                                                                     \
	  "it is not kept any more: ask when its completion is polled: max_write_records / "       \
	  "2 are kept at least")                                                                   \
	/* ---- queue pairs: posting */                                                            \
	X(SEND_STATE, EINVAL, "the QP is in {0:state}: move it to RTS with siw_modify_qp first")   \
	X(SEND_STATE_RC, EINVAL,                                                                   \
	  "the QP is in {0:state}: connect it first (siw_cm_connect, or siw_cm_accept)")           \
	X(RECV_STATE, EINVAL, "the QP is in RESET: move it to INIT first (siw_modify_qp)")         \
	X(RECV_SRQ, EINVAL, "its receives are posted to its SRQ: use siw_post_srq_recv")           \
	X(SEND_FULL, ENOMEM,                                                                       \
	  "the send queue of {0} is full: poll the CQ first, and let some requests be "            \
	  "signalled: a silent one keeps its slot until a later one reports")                      \
	X(RECV_FULL, ENOMEM, "the receive queue of {0} is full: poll the CQ first")                \
	X(PEERS_FULL, ENOMEM,                                                                      \
	  "the QP has requests to as many peers as it remembers (max_peers): poll the CQ "         \
	  "first, or make it with more")                                                           \
	X(SEND_SGE, EINVAL,                                                                        \
	  "a send request has at most {1} elements (max_send_sge of this QP), this one has {0}: "  \
	  "make the QP with more, or send it in parts")                                            \
	X(RECV_SGE, EINVAL,                                                                        \
	  "a receive request has at most {1} elements (max_recv_sge of this QP), this one "        \
	  "has {0}: make the QP with more")                                                        \
	X(SEND_FLAGS, EINVAL,                                                                      \
	  "send_flags {0:hex} has bits that are no flags: use enum siw_send_flags")                \
	X(OPCODE, EINVAL, "{0} is no opcode of this device: use enum siw_wr_opcode")               \
	X(UD_OPCODE, EINVAL,                                                                       \
	  "a UD QP can only SEND, SEND_WITH_IMM and RDMA_WRITE_RECORD: connect an RC QP "          \
	  "for the rest")                                                                          \
	X(UC_OPCODE, EINVAL,                                                                       \
	  "a UC QP can SEND and RDMA_WRITE, both with immediate data too, and bind "               \
	  "windows: connect an RC QP for the rest")                                                \
	X(RD_LOCAL, EINVAL,                                                                        \
	  "an RD QP binds and invalidates nothing of its own: use an RC QP for that")              \
	X(RC_RECORD, EINVAL,                                                                       \
	  "an RC QP has no Write-Records: use SIW_WR_RDMA_WRITE, or a UD or RD QP")                \
	X(UD_HANDLE, EINVAL,                                                                       \
	  "a UD message needs an open address handle: siw_create_ah, then wr.ud.ah")               \
	X(RD_HANDLE, EINVAL,                                                                       \
	  "an RD request needs an open address handle: siw_create_ah, then rd.ah")                 \
	X(RECORD_HANDLE, EINVAL,                                                                   \
	  "a Write-Record needs an open address handle: siw_create_ah, then rd.ah")                \
	X(HANDLE_PD, EINVAL,                                                                       \
	  "its address handle is of another PD: make one with siw_create_ah and the QP's PD")      \
	X(HANDLE_GROUP, EINVAL,                                                                    \
	  "a Write-Record goes to one peer, and its address handle is a multicast group's: give "  \
	  "that of a peer")                                                                        \
	X(HANDLE_SOURCE, EINVAL,                                                                   \
	  "the device has no such source, of the destination's family: give one of "               \
	  "siw_query_device_info")                                                                 \
	X(HANDLE_END, EINVAL,                                                                      \
	  "the QP has no socket at the address handle's source, or none for a destination of "     \
	  "that kind: make it with every_addr, or bind it to that address")                        \
	X(HANDLE_PORT, EINVAL,                                                                     \
	  "neither remote_qpn nor the address handle has a port: give one of them")                \
	X(INLINE_LENGTH, EINVAL,                                                                   \
	  "{0} octets inline, but max_inline_data of the QP is {1}: send them without "            \
	  "SIW_SEND_INLINE, or make the QP with more")                                             \
	X(MESSAGE_LENGTH, EINVAL,                                                                  \
	  "{0} octets in one message, but max_rc_msg is {1}: send them in parts")                  \
	X(READ_INLINE, EINVAL,                                                                     \
	  "a Read has nothing to send inline, nor has an atomic: leave SIW_SEND_INLINE out")       \
	X(NO_READS, EINVAL,                                                                        \
	  "no RDMA Reads were agreed on with the peer: connect with an initiator_depth, and the "  \
	  "peer with responder_resources")                                                         \
	X(NO_READS_RD, EINVAL,                                                                     \
	  "the QP has max_rd_atomic=0, so no RDMA Reads nor atomics: set it on the step to INIT")  \
	X(ATOMIC_LENGTH, EINVAL,                                                                   \
	  "the elements of an atomic have 8 octets in all, where the old value goes: these "       \
	  "have {0}")                                                                              \
	X(PRIVATE_MESSAGE, EINVAL,                                                                 \
	  "Send with Immediate is a message of siwarp's own, and this peer did not announce that " \
	  "it is siwarp: use RDMA_WRITE_WITH_IMM, or set SIWARP_PRIVATE_MESSAGES=1 at both ends "  \
	  "if it is")                                                                              \
	/* ---- queue pairs: windows */                                                            \
	X(BIND_TYPE, EINVAL,                                                                       \
	  "windows are for the peers of RC and UC queue pairs, and this is a {0:type} one")        \
	X(LOCAL_INLINE, EINVAL,                                                                    \
	  "this request sends nothing: leave SIW_SEND_INLINE out (send_flags are SIGNALED, FENCE " \
	  "and SOLICITED here)")                                                                   \
	X(BIND_WINDOW, EINVAL, "a bind needs an open window: siw_alloc_mw, then bind_mw.mw")       \
	X(BIND_TYPE_1, EINVAL, "a window of type 1 is bound by siw_bind_mw")                       \
	X(BIND_TYPE_2, EINVAL,                                                                     \
	  "a window of type 2 is bound by siw_post_send, with SIW_WR_BIND_MW")                     \
	X(BIND_ACCESS, EINVAL,                                                                     \
	  "mw_access_flags {0:hex}: a window takes REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC and "  \
	  "ZERO_BASED alone")                                                                      \
	X(BIND_REGION, EINVAL, "there is no open memory region to bind to: give bind_info.mr")     \
	X(BIND_CONTEXT, EINVAL, "window and region must be of the QP's context")                   \
	/* ---- connections */                                                                     \
	X(CM_CHANNEL_BUSY, EBUSY, "{0} ids of it are open: destroy them first")                    \
	X(CM_QP_TYPE, EINVAL, "this is a {0:type} QP: an id takes one RC QP, one for UD a UD QP")  \
	X(CM_QP_CONTEXT, EINVAL, "the QP is another device's: an id takes one of its own device")  \
	X(CM_HAS_QP, EINVAL, "the id has a QP already: bind this one to an id of its own")         \
	X(CM_LISTENS, EINVAL, "the id listens: bind the QP to the id of a CONNECT_REQUEST")        \
	X(CM_USED, EINVAL, "the id has a connection, or listens, or has a QP: use a new one")      \
	X(CM_NO_DEVICE, EINVAL, "the id has no device yet: siw_cm_set_device first")               \
	X(CM_HAS_DEVICE, EINVAL, "the id has another device, or listens: use a new one")           \
	X(CM_CHANNEL_DEVICE, EINVAL,                                                               \
	  "the channel belongs to a device that is not this id's: make one of no device")          \
	X(CM_NO_QP, EINVAL, "the id has no QP: siw_cm_bind_qp first")                              \
	X(CM_NO_REQUEST, EINVAL,                                                                   \
	  "the id brings no CONNECT_REQUEST that is still to be answered: take one from "          \
	  "siw_cm_get_event")                                                                      \
	X(CM_NO_RESPONSE, EINVAL, "the id has no CONNECT_RESPONSE that is still to be completed")  \
	X(CM_QP_PAIRS, EINVAL,                                                                     \
	  "the QP connects to its peer by number already: give it to an id in RESET or INIT")      \
	X(CM_QP_STATE, EINVAL,                                                                     \
	  "the QP of the id is in {0:state}: it has to be in INIT, where "                         \
	  "siw_cm_bind_qp put it")                                                                 \
	X(CM_PRIVATE_DATA, EINVAL,                                                                 \
	  "{0} octets of private data, but a frame of MPA revision {2} takes {1}: send the rest "  \
	  "over the connection")                                                                   \
	X(CM_UD_DATA, EINVAL,                                                                      \
	  "{0} octets of private data, but a frame of UD resolution takes {1}: send the rest as "  \
	  "a message")                                                                             \
	X(CM_RTR_REVISION, EINVAL, "peer_to_peer needs MPA revision 2, and rev is {0}")            \
	X(CM_RTR, EINVAL,                                                                          \
	  "peer_to_peer {0:hex} has bits that open no connection: give a set of "                  \
	  "enum siw_cm_rtr")                                                                       \
	/* ---- reasons derived from errno */                                                      \
	X(NO_MEMORY, ENOMEM, "the system has no memory left for it: free some")                    \
	X(NO_DESCRIPTORS, EMFILE, "no file descriptors are left: raise `ulimit -n`")               \
	X(ADDRESS_IN_USE, EADDRINUSE, "another program has this port: take another, or port 0")    \
	X(ADDRESS_ABSENT, EADDRNOTAVAIL,                                                           \
	  "this machine has no such address: see siw_get_device_list")                             \
	X(SYSTEM, EIO, "the system refused it: {0:errno}")

enum siw_reason_code {
	SIW_REASON_NONE,
#define SIW_WHY(name, number, text) SIW_WHY_##name,
	SIW_REASONS(SIW_WHY)
#undef SIW_WHY
		SIW_WHY_COUNT,
};

#define SIW_WHY_NUMBERS 4

struct siw_refusal {
	enum siw_reason_code why; /* number is valid if why is not NONE */
	uint64_t number[SIW_WHY_NUMBERS];
};

/*
 * The last refusal of this thread. With the initial-exec model recording it costs only a few
 * stores.
 */
extern __thread struct siw_refusal siw_refusal __attribute__((tls_model("initial-exec")));

static inline void siw_reason_begin(void)
{
	siw_refusal.why = SIW_REASON_NONE;
}

/* Records a reason; returns the negative errno value that SIW_REASONS gives for it. */
int siw_refuse_with(enum siw_reason_code why, const uint64_t number[SIW_WHY_NUMBERS])
	__attribute__((cold));
#define siw_refuse(name, ...) \
	siw_refuse_with(SIW_WHY_##name, (const uint64_t[SIW_WHY_NUMBERS]){ __VA_ARGS__ })

/* Passes a string as one of the numbers. */
static inline uint64_t siw_reason_text(const char *text)
{
	return (uintptr_t)text;
}

/*
 * Records that a queue is full, with two stores, because a program may retry many times a second.
 */
#define siw_refuse_full(name, room) siw_refuse_fast(SIW_WHY_##name, (room))
static inline int siw_refuse_fast(enum siw_reason_code why, uint32_t room)
{
	siw_refusal.why = why;
	siw_refusal.number[0] = room;
	return -ENOMEM;
}

int siw_refuse_number(int err) __attribute__((cold));

/* Records that a mandatory pointer argument is NULL. Returns -EINVAL. */
static inline int siw_refuse_null(const char *argument)
{
	return siw_refuse(NULL_ARGUMENT, siw_reason_text(argument));
}

/*
 * Ends a public function: returns err. If err is negative and no reason was recorded, records the
 * reason that corresponds to err.
 */
static inline int siw_refused(int err)
{
	if (err >= 0)
		siw_refusal.why = SIW_REASON_NONE;
	else if (siw_refusal.why == SIW_REASON_NONE)
		siw_refuse_number(err);
	return err;
}

/* As siw_refused, for a function that returns a pointer: returns NULL and sets errno. */
void *siw_refused_null(int err) __attribute__((cold));

#endif
