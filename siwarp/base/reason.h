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
	X(NULL_ARGUMENT, EINVAL, "{0:text} is NULL: pass a valid pointer")                         \
	X(STALE, ESTALE,                                                                           \
	  "the object belongs to a device that was opened before fork, in the parent process, or " \
	  "closed by force: open the device in this process")                                      \
	X(DESTROYED, EINVAL, "the object was destroyed before: create a new one")                  \
	X(NEGATIVE, EINVAL, "{0:text} is {1}: pass 0 or more")                                     \
	X(DEVICE_FULL, ENOMEM,                                                                     \
	  "the device limit of {1} ({0:text}) is reached: destroy an object that is no longer "    \
	  "needed")                                                                                \
	X(RANGE, EINVAL,                                                                           \
	  "{0:text}={1} is not in the range {2} to {3}: pass a value in this range")               \
	X(UNKNOWN_FLAGS, EINVAL,                                                                   \
	  "{0:text} {1:hex} contains unknown flags: use a set of enum {2:text}")                   \
	X(UNKNOWN_VALUE, EINVAL, "{0:text} is {1}: use a value of enum {2:text}")                  \
	X(WRONG_TYPE, EINVAL,                                                                      \
	  "{0:text} is for {1:text} QPs only, and this QP has type {2:type}: omit it, or use a "   \
	  "QP of such a type")                                                                     \
	X(NOT_CONNECTED, ENOTCONN, "there is no connection: connect first")                        \
	X(TIME_OVER, EAGAIN,                                                                       \
	  "no event arrived within the time-out: use a longer time-out or call again")             \
	X(INTERRUPTED, EINTR, "the wait was interrupted by a signal: call again")                  \
	/* ---- devices, faults, captures */                                                       \
	X(NO_DEVICE, ENODEV, "no device has this address: see siw_get_device_list")                \
	X(CONTEXT_BUSY, EBUSY,                                                                     \
	  "{0} PDs, {1} CQs, {2} completion channels and {3} event channels of the device exist: " \
	  "destroy them first")                                                                    \
	X(FAULTS_PLAN, EINVAL, "invalid fault plan: {0:text}")                                     \
	X(FAULTS_SETTING, EINVAL, "SIWARP_FAULTS is not a valid fault plan: {0:text}")             \
	X(CAPTURE_ON, EBUSY,                                                                       \
	  "a capture is already running, started by SIWARP_CAPTURE or siw_capture_start: call "    \
	  "siw_capture_stop first")                                                                \
	X(CAPTURE_FILE, ESPIPE,                                                                    \
	  "the path is not a regular file: capture to a regular file and read that")               \
	X(ADDRESS_TEXT, EINVAL,                                                                    \
	  "the text is not a numeric IPv4 or IPv6 address: use the form 127.0.0.1 or "             \
	  "fe80::1%eth0")                                                                          \
	X(ADDRESS_FAMILY, EINVAL, "the address family is {0}: use AF_INET or AF_INET6")            \
	/* ---- protection domains, memory, windows */                                             \
	X(PD_BUSY, EBUSY,                                                                          \
	  "{0} MRs, {1} MWs, {2} QPs or SRQs and {3} AHs of the PD exist: destroy them first")     \
	X(MR_LENGTH, EINVAL,                                                                       \
	  "the length of {0} octets exceeds max_mr_size ({1}): register the memory in parts")      \
	X(MR_WRAPS, EINVAL,                                                                        \
	  "{0} octets from this address exceed the address space: reduce the length")              \
	X(MR_ABSENT, EFAULT,                                                                       \
	  "the memory is not mapped, or not writable as the access flags require: register "       \
	  "mapped memory with suitable page protection")                                           \
	X(MR_LOCAL_WRITE, EINVAL,                                                                  \
	  "access {0:hex} allows remote but not local writes: add SIW_ACCESS_LOCAL_WRITE")         \
	X(MR_INVALIDATE, EINVAL,                                                                   \
	  "SIW_ACCESS_REMOTE_INVALIDATE requires a region for one QP: use siw_reg_mr_qp")          \
	X(MR_NO_WINDOWS, EINVAL,                                                                   \
	  "a region that its peer may invalidate cannot have windows: omit SIW_ACCESS_MW_BIND or " \
	  "SIW_ACCESS_REMOTE_INVALIDATE")                                                          \
	X(MR_ZERO_BASED, EINVAL,                                                                   \
	  "SIW_ACCESS_ZERO_BASED requires iova 0, not {0:hex}: omit the flag, or pass iova 0")     \
	X(MR_QP_TYPE, EINVAL,                                                                      \
	  "a region for one QP requires an RC, UC or RD QP, not a UD QP: use siw_reg_mr")          \
	X(MR_BUSY, EBUSY,                                                                          \
	  "a request that uses the region is not complete: poll for its completion, or destroy "   \
	  "its QP, first")                                                                         \
	X(MR_WINDOWS, EBUSY,                                                                       \
	  "a window is bound to the region, or a bind to it is posted: deallocate or invalidate "  \
	  "the window first")                                                                      \
	X(MR_GONE, ENOENT, "the region was deregistered before: register the memory again")        \
	X(REREG_FLAGS, EINVAL, "flags {0:hex} is invalid: use a set of enum siw_rereg_mr_flags")   \
	X(REREG_PD, EINVAL,                                                                        \
	  "the new PD belongs to another context: pass a PD of the same context")                  \
	X(REREG_OF_QP, EINVAL,                                                                     \
	  "the PD of a region for one QP cannot be changed: omit SIW_REREG_MR_CHANGE_PD")          \
	X(MW_BUSY, EBUSY,                                                                          \
	  "a posted bind of the window has not taken effect: poll for its completion, or destroy " \
	  "its QP, first")                                                                         \
	X(AH_BUSY, EBUSY,                                                                          \
	  "a posted message with this handle has not been accepted by UDP: poll for its "          \
	  "completion, or destroy its QP, first")                                                  \
	/* ---- completion queues, channels, shared receive queues */                              \
	X(CHANNEL_BUSY, EBUSY, "{0} CQs use the channel: destroy them first")                      \
	X(CQ_SIZE, EINVAL, "cqe is {0}: use a value from 1 to {1} (max_cqe)")                      \
	X(CQ_VECTOR, EINVAL, "comp_vector is {0}: it must be 0 to {1} (setting SIWARP_LANES)")     \
	X(CQ_CHANNEL, EINVAL,                                                                      \
	  "the channel belongs to another device: use a channel of the same context")              \
	X(CQ_BUSY, EBUSY, "{0} queues of QPs use the CQ: destroy the QPs first")                   \
	X(CQ_HOLDS, EINVAL,                                                                        \
	  "the CQ contains {1} completions, but cqe is {0}: poll the CQ first, or use a larger "   \
	  "cqe")                                                                                   \
	X(CQ_OVERFLOW, EOVERFLOW,                                                                  \
	  "the CQ has overflowed and its QPs are in ERR: create them again with a CQ that has "    \
	  "room for all their requests")                                                           \
	X(CQ_NO_CHANNEL, EINVAL,                                                                   \
	  "the CQ has no channel: create the CQ with a channel of siw_create_comp_channel")        \
	X(CQ_NO_WAIT_FD, EINVAL, "no event loop waits for the CQ: call siw_cq_wait_fd first")      \
	X(SRQ_LIMIT, EINVAL,                                                                       \
	  "srq_limit={0} is not in the range 0 to {1} (max_wr): use a lower limit, or a larger "   \
	  "SRQ")                                                                                   \
	X(SRQ_SHRINKS, EINVAL,                                                                     \
	  "max_wr {0} is less than the {1} posted receives: use at least that number")             \
	X(SRQ_BUSY, EBUSY, "{0} QPs use the SRQ: destroy them first")                              \
	X(SRQ_FULL, ENOMEM, "all {0} receives are posted: poll the CQs first")                     \
	X(SRQ_SGE, EINVAL,                                                                         \
	  "{0} elements exceed the SRQ's max_sge of {1}: create the SRQ with a larger max_sge")    \
	X(SGE_LIST, EINVAL, "the request has {0} elements, but its sg_list is NULL: set sg_list")  \
	/* ---- queue pairs: creation, changes, end */                                             \
	X(QP_RECORDS, EINVAL,                                                                      \
	  "max_write_records={0}: only UD and RD QPs have it, with a value from 0 to {1}")         \
	X(QP_POLICY_QKEY, EINVAL,                                                                  \
	  "error_policy ERROR requires a Q_Key other than 0, because otherwise any datagram "      \
	  "could end the QP: use a random Q_Key, or policy MESSAGE")                               \
	X(QP_CQ, EINVAL, "{0:text} is NULL: a QP requires a send CQ and a receive CQ")             \
	X(QP_CONTEXT, EINVAL,                                                                      \
	  "{0:text} belongs to another context than the PD: create both on one context")           \
	X(QP_CAP, EINVAL,                                                                          \
	  "{0:text}={1} exceeds the device limit {2:text}={3} (siw_query_device): use a lower "    \
	  "value")                                                                                 \
	X(QP_NO_DESCRIPTORS, EMFILE,                                                               \
	  "no file descriptor is left for the socket of the UD QP: raise `ulimit -n`, or share a " \
	  "socket among up to 256 QPs by siw_qp_init_attr.shared_socket_qp")                       \
	X(SHARE_ADDRESS, EINVAL,                                                                   \
	  "shared_socket_qp and addr exclude each other, because the shared socket is already "    \
	  "bound: omit addr")                                                                      \
	X(SHARE_CRC, EINVAL, "the QP of shared_socket_qp has no_crc={0}: use the same value")      \
	X(SHARE_CLOSED, EINVAL, "the QP of shared_socket_qp has no socket: create that QP again")  \
	X(SHARE_FULL, ENOSPC,                                                                      \
	  "{0} QPs share this socket already: create another QP without shared_socket_qp and "     \
	  "share its socket")                                                                      \
	X(QP_IN_GROUPS, EBUSY,                                                                     \
	  "the QP is a member of {0} multicast groups: call siw_detach_mcast first")               \
	X(QP_STEP, EINVAL,                                                                         \
	  "there is no transition from {0:state} to {1:state}: move the QP to {2:states}, or to "  \
	  "RESET or ERR as from any state, first")                                                 \
	X(QP_STEP_OUT, EINVAL,                                                                     \
	  "there is no transition from {0:state} to {1:state}: move the QP to RESET or ERR "       \
	  "first, as from any state")                                                              \
	X(QP_STEP_RC, EINVAL,                                                                      \
	  "there is no transition from {0:state} to {1:state}: <siwarp/cm.h> connects an RC QP: "  \
	  "use siw_cm_bind_qp, then siw_cm_connect or siw_cm_accept, or create the QP with "       \
	  "by_qpn = 1, which connects by the peer's address and QPN")                              \
	X(QP_ATTR_TYPE, EINVAL,                                                                    \
	  "this transition does not accept {0:attrs}, because {1:type} QPs have no such "          \
	  "attribute: omit it from the mask")                                                      \
	X(QP_ATTR_STEP, EINVAL, "this transition does not accept {0:attrs}: set it in {1:steps}")  \
	X(QP_CUR_STATE, EINVAL,                                                                    \
	  "cur_qp_state is {0:state}, but the QP is in {1:state}: query qp_state first")           \
	X(QP_ORD, EINVAL,                                                                          \
	  "max_rd_atomic={0} of a connected QP must be from {1} to {2}, the negotiated maximum: "  \
	  "request more with initiator_depth of siw_cm_connect")                                   \
	X(QP_PATH_MTU, EINVAL,                                                                     \
	  "path_mtu={0} is not 256 to 65535 octets, 1 to 5, or 0: omit it to use the MTU of the "  \
	  "route")                                                                                 \
	X(QP_FD, EINVAL, "fd {0} is not a bound UDP socket: pass a UDP socket that is bound")      \
	X(QP_FD_CLOSED, EBADF,                                                                     \
	  "fd {0} is not an open descriptor: pass a UDP socket that is bound")                     \
	X(QP_FD_SHARED, EINVAL,                                                                    \
	  "the QP shares its socket, so it accepts no fd: use a QP with a socket of its own")      \
	X(QP_FD_GROUPS, EINVAL,                                                                    \
	  "the QP is a member of a multicast group, so it accepts no fd: call siw_detach_mcast "   \
	  "first")                                                                                 \
	X(UC_PEER, EINVAL,                                                                         \
	  "a UC QP needs its peer for the transition to RTR: set ah_addr (SIW_QP_AV)")             \
	X(UC_PORT, EINVAL, "neither dest_qp_num nor ah_addr contains a port: set one of them")     \
	X(UC_FAMILY, EAFNOSUPPORT,                                                                 \
	  "the peer's address and the QP's address are of different families: create the QP with " \
	  "siw_qp_init_attr.addr of the peer's family")                                            \
	X(EVERY_ADDRESS, EINVAL,                                                                   \
	  "every_addr and an address exclude each other: omit one of them (addr.port_be alone "    \
	  "selects the port)")                                                                     \
	X(QP_FD_EVERY, EINVAL,                                                                     \
	  "a QP with every_addr has one socket per address, so it accepts no fd: omit fd")         \
	X(UC_SOURCE, EINVAL,                                                                       \
	  "the QP has no socket at ah_source, or none of the peer's family: use the address that " \
	  "the QP is bound to, or create the QP with every_addr")                                  \
	X(PAIR_PEER, EINVAL,                                                                       \
	  "an RC QP with by_qpn needs its peer for the transition to RTR: set ah_addr "            \
	  "(SIW_QP_AV) and dest_qp_num (SIW_QP_DEST_QPN)")                                         \
	X(PAIR_GROUP, EINVAL,                                                                      \
	  "ah_addr is a multicast address: use the address of the peer's device")                  \
	X(PAIR_QPN, EINVAL, "dest_qp_num={0} is not a valid QPN: use siw_qp_num of the peer's QP") \
	X(PAIR_SOURCE, EINVAL,                                                                     \
	  "ah_source is not an address of the device in the peer's family: use an address of "     \
	  "siw_query_device_info")                                                                 \
	X(PAIR_PORTS, EADDRINUSE,                                                                  \
	  "no TCP port is free for the QPN: destroy QPs, or extend the range of settings "         \
	  "rc_port_first and rc_port_last")                                                        \
	X(MCAST_ADDRESS, EINVAL,                                                                   \
	  "the address is not a multicast address: use an address in 224.0.0.0/4 or ff00::/8")     \
	X(MCAST_FAMILY, EINVAL,                                                                    \
	  "the QP is bound to an {0:text} address: use a group of the same family")                \
	X(MCAST_MEMBER, EINVAL,                                                                    \
	  "the QP is not a member of the group: leave only groups that the QP has joined")         \
	X(MCAST_PORT, EADDRINUSE,                                                                  \
	  "another program has bound the multicast port (setting mcast_port) on all addresses: "   \
	  "stop that program, or change the setting for all members")                              \
	X(RECORD_ID, EINVAL,                                                                       \
	  "wr_id 0 is not the wr_id of a Write-Record: use that of its completion")                \
	X(RECORD_GONE, ENOENT,                                                                     \
	  "the Write-Record is no longer stored: query it when its completion is polled (at "      \
	  "least the last max_write_records / 2 are stored)")                                      \
	/* ---- queue pairs: posting */                                                            \
	X(SEND_STATE, EINVAL, "the QP is in {0:state}: move it to RTS with siw_modify_qp first")   \
	X(SEND_STATE_RC, EINVAL,                                                                   \
	  "the QP is in {0:state}: connect it first (siw_cm_connect, or siw_cm_accept)")           \
	X(RECV_STATE, EINVAL, "the QP is in RESET: move it to INIT first (siw_modify_qp)")         \
	X(RECV_SRQ, EINVAL, "the QP uses an SRQ: post receives with siw_post_srq_recv")            \
	X(SEND_FULL, ENOMEM,                                                                       \
	  "the send queue of {0} requests is full: poll the CQ first, and post some requests as "  \
	  "signaled, because an unsignaled request keeps its slot until a later one completes")    \
	X(RECV_FULL, ENOMEM, "the receive queue of {0} requests is full: poll the CQ first")       \
	X(PEERS_FULL, ENOMEM,                                                                      \
	  "the QP has pending requests to max_peers peers: poll the CQ first, or create the QP "   \
	  "with a larger max_peers")                                                               \
	X(SEND_SGE, EINVAL,                                                                        \
	  "the send request has {0} elements, but max_send_sge of the QP is {1}: create the QP "   \
	  "with more, or split the request")                                                       \
	X(RECV_SGE, EINVAL,                                                                        \
	  "the receive request has {0} elements, but max_recv_sge of the QP is {1}: create the "   \
	  "QP with more")                                                                          \
	X(UD_OPCODE, EINVAL,                                                                       \
	  "a UD QP supports only SEND, SEND_WITH_IMM and RDMA_WRITE_RECORD: use an RC QP for "     \
	  "other operations")                                                                      \
	X(UC_OPCODE, EINVAL,                                                                       \
	  "a UC QP supports only SEND and RDMA_WRITE, with or without immediate data, and window " \
	  "operations: use an RC QP for other operations")                                         \
	X(RD_LOCAL, EINVAL,                                                                        \
	  "an RD QP supports no window binds and no local invalidation: use an RC QP")             \
	X(RC_RECORD, EINVAL,                                                                       \
	  "an RC QP does not support Write-Records: use SIW_WR_RDMA_WRITE, or a UD or RD QP")      \
	X(NO_HANDLE, EINVAL,                                                                       \
	  "the request requires a valid address handle: create one with siw_create_ah and set "    \
	  "wr.ud.ah (UD messages) or rd.ah (RD, Write-Records)")                                   \
	X(ARRAY_OPCODE, EINVAL,                                                                    \
	  "an array cannot contain requests with opcode {0}: post them with siw_post_send")        \
	X(ARRAY_INLINE, EINVAL,                                                                    \
	  "an array cannot contain requests with SIW_SEND_INLINE, because no key checks the "      \
	  "address of inline data: omit the flag")                                                 \
	X(ARRAY_HANDLE, EINVAL,                                                                    \
	  "the request has the address handle with index {0}, but the call has {1} address "       \
	  "handles: use an index below {1}")                                                       \
	X(HANDLE_PD, EINVAL,                                                                       \
	  "the address handle belongs to another PD: create one with the QP's PD")                 \
	X(HANDLE_GROUP, EINVAL,                                                                    \
	  "the address handle of a Write-Record is a multicast group: use the handle of one peer") \
	X(HANDLE_SOURCE, EINVAL,                                                                   \
	  "the address handle's source is not an address of the device in the destination's "      \
	  "family: use an address of siw_query_device_info")                                       \
	X(HANDLE_END, EINVAL,                                                                      \
	  "the QP has no socket at the address handle's source, or none of the destination's "     \
	  "family: create the QP with every_addr, or bind it to that address")                     \
	X(HANDLE_PORT, EINVAL,                                                                     \
	  "neither remote_qpn nor the address handle contains a port: set one of them")            \
	X(INLINE_LENGTH, EINVAL,                                                                   \
	  "{0} octets of inline data exceed max_inline_data of the QP ({1}): omit "                \
	  "SIW_SEND_INLINE, or create the QP with more")                                           \
	X(MESSAGE_LENGTH, EINVAL, "the message of {0} octets exceeds max_rc_msg ({1}): split it")  \
	X(READ_INLINE, EINVAL,                                                                     \
	  "a Read or an atomic has no data to send inline: omit SIW_SEND_INLINE")                  \
	X(NO_READS, EINVAL,                                                                        \
	  "the connection allows no RDMA Reads: connect with an initiator_depth, and the peer "    \
	  "with responder_resources")                                                              \
	X(NO_READS_RD, EINVAL,                                                                     \
	  "the QP has max_rd_atomic=0, which allows no RDMA Reads and atomics: set it in the "     \
	  "transition to INIT")                                                                    \
	X(ATOMIC_LENGTH, EINVAL,                                                                   \
	  "the elements of an atomic must have 8 octets in total for the original value, not {0}") \
	X(PRIVATE_MESSAGE, EINVAL,                                                                 \
	  "Send with Immediate is specific to siwarp, and the peer has not announced that it is "  \
	  "siwarp: use RDMA_WRITE_WITH_IMM, or create the QPs of both ends with private_messages " \
	  "if it is")                                                                              \
	/* ---- queue pairs: windows */                                                            \
	X(LOCAL_INLINE, EINVAL,                                                                    \
	  "the request sends no data: omit SIW_SEND_INLINE (its valid send_flags are SIGNALED, "   \
	  "FENCE and SOLICITED)")                                                                  \
	X(BIND_WINDOW, EINVAL,                                                                     \
	  "a bind requires an allocated window: use siw_alloc_mw and set bind_mw.mw")              \
	X(BIND_TYPE_1, EINVAL, "a window of type 1 is bound by siw_bind_mw")                       \
	X(BIND_TYPE_2, EINVAL,                                                                     \
	  "a window of type 2 is bound by siw_post_send, with SIW_WR_BIND_MW")                     \
	X(BIND_ACCESS, EINVAL,                                                                     \
	  "mw_access_flags {0:hex} is invalid: use only REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC " \
	  "and ZERO_BASED")                                                                        \
	X(BIND_REGION, EINVAL, "the bind requires a registered memory region: set bind_info.mr")   \
	X(BIND_CONTEXT, EINVAL,                                                                    \
	  "window or region belongs to another context than the QP: use objects of the QP's "      \
	  "context")                                                                               \
	/* ---- connections */                                                                     \
	X(CM_CHANNEL_BUSY, EBUSY, "{0} ids of the channel exist: destroy them first")              \
	X(CM_QP_TYPE, EINVAL,                                                                      \
	  "the QP has type {0:type}: an id requires an RC QP, a UD id a UD QP")                    \
	X(CM_QP_CONTEXT, EINVAL, "the QP belongs to another device: use a QP of the id's device")  \
	X(CM_HAS_QP, EINVAL, "the id already has a QP: bind this QP to another id")                \
	X(CM_LISTENS, EINVAL, "the id is listening: bind the QP to the id of a CONNECT_REQUEST")   \
	X(CM_USED, EINVAL, "the id is connected, is listening or has a QP: use a new id")          \
	X(CM_NO_DEVICE, EINVAL, "the id has no device: call siw_cm_set_device first")              \
	X(CM_HAS_DEVICE, EINVAL, "the id has another device or is listening: use a new id")        \
	X(CM_CHANNEL_DEVICE, EINVAL,                                                               \
	  "the channel belongs to another device: use a channel of the id's device, or of no "     \
	  "device")                                                                                \
	X(CM_NO_QP, EINVAL, "the id has no QP: call siw_cm_bind_qp first")                         \
	X(CM_NO_REQUEST, EINVAL,                                                                   \
	  "the id has no pending CONNECT_REQUEST: use the id of such an event from "               \
	  "siw_cm_get_event")                                                                      \
	X(CM_NO_RESPONSE, EINVAL,                                                                  \
	  "the id has no pending CONNECT_RESPONSE: connect with hold set and wait for that event " \
	  "first")                                                                                 \
	X(CM_QP_PAIRS, EINVAL,                                                                     \
	  "the QP already connects to its peer by QPN: bind it in RESET or INIT")                  \
	X(CM_QP_STATE, EINVAL,                                                                     \
	  "the QP of the id is in {0:state}: it must be in INIT, as siw_cm_bind_qp leaves it")     \
	X(CM_PRIVATE_DATA, EINVAL,                                                                 \
	  "{0} octets of private data exceed the limit of {1} in MPA revision {2}: send the rest " \
	  "over the connection")                                                                   \
	X(CM_UD_DATA, EINVAL,                                                                      \
	  "{0} octets of private data exceed the limit of {1} in UD resolution: send the rest as " \
	  "a message")                                                                             \
	X(CM_RTR_REVISION, EINVAL,                                                                 \
	  "peer_to_peer requires MPA revision 2, but rev is {0}: set rev to 2")                    \
	/* ---- reasons derived from errno */                                                      \
	X(NO_MEMORY, ENOMEM, "the system is out of memory: free memory")                           \
	X(NO_DESCRIPTORS, EMFILE, "no file descriptor is left: raise `ulimit -n`")                 \
	X(ADDRESS_IN_USE, EADDRINUSE, "the port is in use: choose another port, or port 0")        \
	X(ADDRESS_ABSENT, EADDRNOTAVAIL,                                                           \
	  "the machine does not have this address: see siw_get_device_list")                       \
	X(SYSTEM, EIO, "the system refused the operation: {0:errno}")

enum siw_reason_code {
	SIW_REASON_NONE,
#define SIW_WHY(name, number, text) SIW_WHY_##name,
	SIW_REASONS(SIW_WHY)
#undef SIW_WHY
		SIW_WHY_COUNT,
	SIW_WHY_LIBRARY, /* a text of siw_reason_record(), not in the table */
};

#define SIW_WHY_NUMBERS 4

struct siw_refusal {
	enum siw_reason_code why; /* NONE: no reason is recorded, and number is not valid */
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
int siw_fail_call_with_reason(enum siw_reason_code why, const uint64_t number[SIW_WHY_NUMBERS])
	__attribute__((cold));
#define siw_refuse(name, ...) \
	siw_fail_call_with_reason(SIW_WHY_##name, (const uint64_t[SIW_WHY_NUMBERS]){ __VA_ARGS__ })

/* Converts a string to one of the numbers that are stored with a reason. */
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

int siw_refuse_with_errno(int err) __attribute__((cold));

/* Records that a mandatory pointer argument is NULL. Returns -EINVAL. */
static inline int siw_refuse_null(const char *argument)
{
	return siw_refuse(NULL_ARGUMENT, siw_reason_text(argument));
}

/*
 * Records that the argument with the name `what` contains a flag, or has a value, that is not in
 * the set. set: name of the enum, such as "siw_access_flags". Returns -EINVAL.
 */
static inline int siw_refuse_flags(const char *what, uint64_t flags, const char *set)
{
	return siw_refuse(UNKNOWN_FLAGS, siw_reason_text(what), flags, siw_reason_text(set));
}

static inline int siw_refuse_value(const char *what, uint64_t value, const char *set)
{
	return siw_refuse(UNKNOWN_VALUE, siw_reason_text(what), value, siw_reason_text(set));
}

/*
 * Records that a QP of this type does not support the attribute or function with the name `what`.
 * types: the types that support it, such as "UD and RD". Returns -EINVAL.
 */
static inline int siw_refuse_type(const char *what, const char *types, uint64_t type)
{
	return siw_refuse(WRONG_TYPE, siw_reason_text(what), siw_reason_text(types), type);
}

/*
 * Ends a public function: returns err. If err is negative and no reason was recorded, records the
 * reason that corresponds to the errno value.
 */
static inline int siw_refused(int err)
{
	if (err >= 0)
		siw_refusal.why = SIW_REASON_NONE;
	else if (siw_refusal.why == SIW_REASON_NONE)
		siw_refuse_with_errno(err);
	return err;
}

/* Ends a function that returns a pointer, like siw_refused: returns NULL and sets errno. */
void *siw_refuse_and_return_null(int err) __attribute__((cold));

#endif
