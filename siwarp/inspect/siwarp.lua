-- SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
-- For Wireshark and tshark, 4.0 or newer: protocols and fields that their iWARP dissectors lack.
--
--   tshark -X lua_script:$(siwarp dissect --lua-path) -r FILE
--
--   * datagram-iWARP on UDP, recognized by its CRC or selected with Decode As (UDP port, SIWARP):
--     UD, UC, Write-Record and RD with hello, challenge, echo, acknowledgements and probes. Each
--     field is shown and the CRC checked; the stock dissector shows DDP and RDMAP.
--   * resolution of UD queue pairs by address and port (spec/cm-udp.md): question, answer, refusal,
--     cookie
--   * MPA connections whose Request asks for Markers, or all MPA connections with
--     -o siwarp_mpa.all:TRUE: CRC and Markers are checked
--   * in addition to the stock dissectors: IRD, ORD and the bits of revision 2 in start-up frames,
--     and the Read Request that a Terminate quotes
--
-- Filters begin with siwarp. and siwarp_mpa.: siwarp.crc.status == "Bad", siwarp.msn == 7,
-- siwarp.llp.type == 5 (RD's acknowledgements), siwarp.again, siwarp.rd.reason == 1,
-- siwarp.sidr.type. On a port that belongs to another protocol, use -o udp.try_heuristic_first:TRUE
-- or Decode As.

local bits = bit32 or bit
local stock = Dissector.get("iwarp_ddp_rdmap")

-- ---- CRC32C -------------------------------------------------------------------------------------

local crc_table = {}
for n = 0, 255 do
	local c = n
	for _ = 1, 8 do
		local low = c % 2
		c = math.floor(c / 2)
		if low == 1 then
			c = bits.bxor(c, 0x82f63b78) % 0x100000000
		end
	end
	crc_table[n] = c
end

-- Update the CRC register: its low octet selects the table entry, the other octets shift down.
local function crc_step(c, octet)
	return bits.bxor(math.floor(c / 256), crc_table[bits.bxor(c % 256, octet) % 256]) % 0x100000000
end

-- The CRC32C of a string.
local function crc32c(octets)
	local c = 0xffffffff
	for i = 1, #octets do
		c = crc_step(c, octets:byte(i))
	end
	return 0xffffffff - c
end

-- ---- names of values ----------------------------------------------------------------------------

local opcodes = {
	[0] = "Write", "Read Request", "Read Response", "Send", "Send with Invalidate",
	"Send with Solicited Event", "Send with Solicited Event and Invalidate", "Terminate",
	"Immediate Data", "Immediate Data with Solicited Event", "Atomic Request",
	"Atomic Response", [15] = "private message",
}
local queues = { [0] = "Send", "Read Request", "Terminate", "Atomic Response" }
local layers = { [0] = "RDMAP", "DDP", "MPA" }
local privates = { "Send with Immediate", "Send with Immediate and Solicited Event", "Write-Record",
	"Delivery count", "Requester" }
local llp_types = {
	"UC", "Record", "UC report", [4] = "RD DATA", [5] = "RD ACK", [6] = "RD HELLO", [7] = "RD CHALLENGE",
	[8] = "RD ECHO", [9] = "RD PROBE", [10] = "RD BYE", [11] = "RD VERSIONS",
}
local sidr_types = { "question", "answer", "refusal", "cookie" }
local sidr_statuses = { "the listener is closed", "the program rejected" }
local reasons = {
	["0.1.0"] = "invalid STag", ["0.1.1"] = "base or bounds violation",
	["0.1.2"] = "access rights violation", ["0.1.3"] = "STag not associated with the stream",
	["0.1.4"] = "TO wrap", ["0.1.9"] = "STag cannot be invalidated", ["0.1.255"] = "unspecified",
	["0.2.5"] = "invalid RDMAP version", ["0.2.6"] = "unexpected opcode",
	["0.2.7"] = "catastrophic error of the stream", ["0.2.8"] = "catastrophic error, global",
	["0.2.9"] = "STag cannot be invalidated", ["0.2.255"] = "unspecified",
	["1.1.0"] = "invalid STag", ["1.1.1"] = "base or bounds violation",
	["1.1.2"] = "STag not associated with the stream", ["1.1.3"] = "TO wrap",
	["1.1.4"] = "invalid DDP version", ["1.2.1"] = "invalid queue number",
	["1.2.2"] = "no buffer available", ["1.2.3"] = "MSN out of range",
	["1.2.4"] = "invalid MO", ["1.2.5"] = "message too long for the buffer",
	["1.2.6"] = "invalid DDP version", ["2.0.1"] = "TCP connection lost",
	["2.0.2"] = "CRC mismatch", ["2.0.3"] = "Marker and ULPDU length disagree",
	["2.0.4"] = "invalid start-up frame", ["2.0.5"] = "local catastrophic error",
	["2.0.6"] = "insufficient IRD", ["2.0.7"] = "no matching RTR option",
}

-- ---- shared by both protocols -------------------------------------------------------------------

-- Show the CRC in the last four octets and compare it with the CRC of all octets before it.
local function add_crc(tree, fields, range, checked, in_use)
	local at = range:len() - 4
	local found = range(at, 4):le_uint()
	local item = tree:add_le(fields.crc, range(at, 4))
	local expected = crc32c(range(0, at):raw())
	local status
	if found == expected then
		status = "Good"
		item:append_text(" (Good CRC32)")
	elseif not in_use or (in_use == "perhaps" and found == 0) then
		status = "Unused"
		item:append_text(" (not used)")
	else
		status = "Bad"
		item:append_text(string.format(" (Bad CRC32, should be 0x%08x)", expected))
		item:add_proto_expert_info(checked)
	end
	tree:add(fields.crc_status, status):set_generated()
	return status
end

-- Return the clause that lists the errors of a layer.
local function clause_of(layer, code)
	if layer == 2 then
		return code < 5 and "RFC5044-8-01" or "RFC6581-8"
	end
	return layer == 1 and "RFC5041-7.2-01" or "RFC5040-4.8-03"
end

local function add_terminate(tree, fields, range)
	if range:len() < 4 then
		return ""
	end
	local layer, kind = math.floor(range(0, 1):uint() / 16), range(0, 1):uint() % 16
	local code = range(1, 1):uint()
	tree:add(fields.term_layer, range(0, 1), layer)
	tree:add(fields.term_type, range(0, 1), kind)
	tree:add(fields.term_code, range(1, 1))
	local reason = reasons[layer .. "." .. kind .. "." .. code] or "code " .. code
	reason = (layers[layer] or "layer " .. layer) .. ": " .. reason
	tree:add(fields.term_reason, reason):set_generated()
	tree:add(fields.term_clause, clause_of(layer, code)):set_generated()
	return reason
end

-- Show the Read Request after the quoted DDP header, which the stock dissector leaves out.
local function add_quoted_request(tree, fields, range)
	local flags = range(2, 1):uint()
	local at = 4
	if bits.band(flags, 0xc0) ~= 0 then
		at = at + 2
	end
	if bits.band(flags, 0x40) ~= 0 then
		if range:len() <= at then
			return
		end
		at = at + (bits.band(range(at, 1):uint(), 0x80) ~= 0 and 14 or 18)
	end
	if bits.band(flags, 0x20) == 0 or range:len() < at + 28 then
		return
	end
	local quoted = tree:add(fields.quoted, range(at, 28))
	quoted:add(fields.quoted_sink_stag, range(at, 4))
	quoted:add(fields.quoted_sink_to, range(at + 4, 8))
	quoted:add(fields.quoted_size, range(at + 12, 4))
	quoted:add(fields.quoted_src_stag, range(at + 16, 4))
	quoted:add(fields.quoted_src_to, range(at + 20, 8))
end

-- Call the stock dissector. It reports octets it cannot parse as an error of this script, hence
-- pcall.
local function chain(tvb, pinfo, root, tree, malformed)
	if stock and not pcall(stock.call, stock, tvb, pinfo, root) then
		tree:add_proto_expert_info(malformed)
	end
end

local function shared_fields(prefix)
	return {
		crc = ProtoField.uint32(prefix .. ".crc", "CRC32C", base.HEX),
		crc_status = ProtoField.string(prefix .. ".crc.status", "CRC status"),
		term_layer = ProtoField.uint8(prefix .. ".term.layer", "Terminate layer", base.DEC, layers),
		term_type = ProtoField.uint8(prefix .. ".term.type", "Terminate error type"),
		term_code = ProtoField.uint8(prefix .. ".term.code", "Terminate error code"),
		term_reason = ProtoField.string(prefix .. ".term.reason", "Terminate reason"),
		term_clause = ProtoField.string(prefix .. ".term.clause", "Terminate clause"),
		quoted = ProtoField.none(prefix .. ".term.read_request", "Quoted Read Request"),
		quoted_sink_stag = ProtoField.uint32(prefix .. ".term.sink_stag", "Sink STag", base.HEX),
		quoted_sink_to = ProtoField.uint64(prefix .. ".term.sink_to", "Sink TO", base.HEX),
		quoted_size = ProtoField.uint32(prefix .. ".term.size", "Read size"),
		quoted_src_stag = ProtoField.uint32(prefix .. ".term.src_stag", "Source STag", base.HEX),
		quoted_src_to = ProtoField.uint64(prefix .. ".term.src_to", "Source TO", base.HEX),
	}
end

local function listed(fields)
	local all = {}
	for _, field in pairs(fields) do
		all[#all + 1] = field
	end
	return all
end

-- ---- datagram-iWARP on UDP ---------------------------------------------------------------------

local siwarp = Proto("siwarp", "datagram-iWARP")
local f = shared_fields("siwarp")
f.last = ProtoField.bool("siwarp.last", "Last segment", 8, nil, 0x40)
f.dv = ProtoField.uint8("siwarp.ddp_version", "DDP version", base.DEC, nil, 0x03)
f.rv = ProtoField.uint8("siwarp.rdmap_version", "RDMAP version", base.DEC, nil, 0xc0)
f.opcode = ProtoField.uint8("siwarp.opcode", "Opcode", base.DEC, opcodes, 0x0f)
f.q_key = ProtoField.uint32("siwarp.q_key", "Q_Key", base.HEX)
f.qn = ProtoField.uint32("siwarp.qn", "QN", base.HEX)
f.queue = ProtoField.uint32("siwarp.queue", "Queue", base.DEC, queues, 0x00000003)
f.dest_index = ProtoField.uint32("siwarp.dest_index", "Destination index", base.DEC, nil, 0x0000ff00)
f.source_index = ProtoField.uint32("siwarp.source_index", "Source index", base.DEC, nil, 0x00ff0000)
f.msn = ProtoField.uint32("siwarp.msn", "MSN")
f.mo = ProtoField.uint32("siwarp.mo", "MO")
f.length = ProtoField.uint32("siwarp.length", "Message length")
f.stag = ProtoField.uint32("siwarp.stag", "STag", base.HEX)
f.to = ProtoField.uint64("siwarp.to", "TO", base.HEX)
f.private = ProtoField.uint8("siwarp.private", "Private message", base.DEC, privates)
f.sends = ProtoField.uint32("siwarp.sends", "Sends received")
f.writes = ProtoField.uint32("siwarp.writes", "Writes placed")
f.wants_counts = ProtoField.bool("siwarp.wants_counts", "Wants delivery counts", 8, nil, 0x01)
f.rnr_retry = ProtoField.uint8("siwarp.rnr_retry", "rnr_retry")
f.imm = ProtoField.uint32("siwarp.imm_data", "Immediate data", base.HEX)
f.llp_type = ProtoField.uint8("siwarp.llp.type", "Type", base.DEC, llp_types, 0xf0)
f.llp_version = ProtoField.uint8("siwarp.llp.version", "LLP version", base.DEC, nil, 0x0c)
f.llp_flags = ProtoField.uint8("siwarp.llp.flags", "Flags", base.HEX)
f.llp_first = ProtoField.bool("siwarp.llp.first", "First datagram of an operation", 8, nil, 0x01)
f.llp_dest = ProtoField.uint8("siwarp.llp.dest_index", "Destination index")
f.llp_source = ProtoField.uint8("siwarp.llp.source_index", "Source index")
f.psn = ProtoField.uint32("siwarp.psn", "PSN")
f.first_seen = ProtoField.framenum("siwarp.first_seen", "First seen in")
f.rd_source = ProtoField.uint32("siwarp.rd.source_epoch", "Source epoch", base.HEX)
f.rd_dest = ProtoField.uint32("siwarp.rd.dest_epoch", "Destination epoch", base.HEX)
f.rd_acked = ProtoField.uint32("siwarp.rd.acknowledged", "Acknowledged: all before")
f.rd_response_acked = ProtoField.uint32("siwarp.rd.response_acknowledged", "Acknowledged responses: all before")
f.rd_credit = ProtoField.uint16("siwarp.rd.credit", "Credit in KiB")
f.rd_response_credit = ProtoField.uint16("siwarp.rd.response_credit", "Credit for responses in KiB")
f.rd_delay = ProtoField.uint16("siwarp.rd.delay", "Microseconds since the newest acknowledged datagram arrived")
f.rd_ird = ProtoField.uint8("siwarp.rd.ird", "IRD")
f.rd_flags = ProtoField.uint8("siwarp.rd.flags", "RD flags", base.HEX)
f.rd_probed = ProtoField.bool("siwarp.rd.probed", "Answers the probe of this PSN", 8, nil, 0x01)
f.rd_answer = ProtoField.bool("siwarp.rd.answer", "Answers a BYE", 8, nil, 0x02)
f.rd_response = ProtoField.bool("siwarp.rd.response", "In the space of responses", 8, nil, 0x04)
f.rd_not_ready = ProtoField.bool("siwarp.rd.not_ready", "A message waits for a receive", 8, nil, 0x08)
f.rd_reason = ProtoField.uint8("siwarp.rd.reason", "Reason", base.DEC, { [0] = "the endpoint closes",
	"the pair of epochs is not known", "sequence error", "idle or evicted", "refused", "not ready for too long" })
f.rd_ce = ProtoField.uint32("siwarp.rd.ce", "Datagrams received with CE")
f.rd_rnr_timer = ProtoField.uint8("siwarp.rd.rnr_timer", "RNR timer", base.DEC, nil, 0x1f)
f.rd_ranges = ProtoField.bytes("siwarp.rd.ranges", "Datagrams received after a gap")
f.rd_early = ProtoField.uint32("siwarp.rd.early", "Number of datagrams after a gap")
f.rd_versions = ProtoField.uint8("siwarp.rd.versions", "Versions, one bit each", base.HEX)
f.rd_option = ProtoField.uint8("siwarp.rd.option", "Option", base.DEC, {
	[1] = "longest segment", [2] = "window", [3] = "features", [4] = "instance",
})
f.rd_option_value = ProtoField.bytes("siwarp.rd.option_value", "Value")
f.rd_longest = ProtoField.uint32("siwarp.rd.longest", "Longest segment")
f.rd_window = ProtoField.uint32("siwarp.rd.window", "Window in datagrams")
f.rd_features = ProtoField.uint32("siwarp.rd.features", "Features", base.HEX)
f.rd_instance = ProtoField.bytes("siwarp.rd.instance", "Instance")
f.rd_cookie = ProtoField.bytes("siwarp.rd.cookie", "Cookie")
f.rd_padding = ProtoField.uint32("siwarp.rd.padding", "Octets of padding")
f.rec_solicited = ProtoField.bool("siwarp.record.solicited", "Solicited", 8, nil, 0x01)
f.rec_id = ProtoField.uint32("siwarp.record.id", "Message id")
f.report_datagrams = ProtoField.uint64("siwarp.report.datagrams", "Datagrams received")
f.report_octets = ProtoField.uint64("siwarp.report.octets", "Octets received")
f.report_next = ProtoField.uint32("siwarp.report.next", "Next PSN")
f.rec_to = ProtoField.uint64("siwarp.record.to", "TO of the message", base.HEX)
f.rec_length = ProtoField.uint32("siwarp.record.length", "Octets of the message")
f.about_id = ProtoField.uint32("siwarp.about.record_id", "About the Write-Record with id")
f.about_q_key = ProtoField.uint32("siwarp.about.q_key", "About the message with Q_Key", base.HEX)
f.about_qn = ProtoField.uint32("siwarp.about.qn", "About the message with QN", base.HEX)
f.about_msn = ProtoField.uint32("siwarp.about.msn", "About the message with MSN")
f.sidr_magic = ProtoField.string("siwarp.sidr.magic", "Magic")
f.sidr_version = ProtoField.uint8("siwarp.sidr.version", "Version")
f.sidr_type = ProtoField.uint8("siwarp.sidr.type", "Type", base.DEC, sidr_types)
f.sidr_status = ProtoField.uint8("siwarp.sidr.status", "Status", base.DEC, sidr_statuses)
f.sidr_data_len = ProtoField.uint8("siwarp.sidr.data_len", "Octets of private data")
f.sidr_id = ProtoField.uint64("siwarp.sidr.id", "Question's id", base.HEX)
f.sidr_cookie = ProtoField.uint64("siwarp.sidr.cookie", "Cookie", base.HEX)
f.sidr_qpn = ProtoField.uint32("siwarp.sidr.qpn", "QPN", base.HEX)
f.sidr_gid = ProtoField.ipv6("siwarp.sidr.gid", "GID")
f.sidr_data = ProtoField.bytes("siwarp.sidr.data", "Private data")
f.sidr_asked = ProtoField.framenum("siwarp.sidr.asked", "Asked in", base.NONE, frametype.REQUEST)
siwarp.fields = listed(f)

local bad_crc = ProtoExpert.new("siwarp.bad_crc", "Wrong CRC: the receiver drops it",
	expert.group.CHECKSUM, expert.severity.ERROR)
local bad_header = ProtoExpert.new("siwarp.bad_header", "A header that no receiver accepts",
	expert.group.MALFORMED, expert.severity.WARN)
local too_short = ProtoExpert.new("siwarp.short", "Shorter than the headers and the CRC",
	expert.group.MALFORMED, expert.severity.ERROR)
local bad_llp = ProtoExpert.new("siwarp.bad_llp", "An LLP header that no receiver accepts",
	expert.group.MALFORMED, expert.severity.WARN)
local no_answer = ProtoExpert.new("siwarp.no_answer", "Shorter than its answer, so it is not answered",
	expert.group.PROTOCOL, expert.severity.WARN)
local bad_sidr = ProtoExpert.new("siwarp.bad_sidr", "A frame of UD resolution that no receiver accepts",
	expert.group.MALFORMED, expert.severity.WARN)
local bad_offer = ProtoExpert.new("siwarp.bad_offer", "Versions or options that no receiver accepts",
	expert.group.MALFORMED, expert.severity.WARN)
local bad_cookie = ProtoExpert.new("siwarp.bad_cookie", "A cookie cannot have this length",
	expert.group.MALFORMED, expert.severity.WARN)
local unknown = ProtoExpert.new("siwarp.unknown_pair",
	"The sender does not know this pair of epochs: it has restarted, or discarded the pair",
	expert.group.SEQUENCE, expert.severity.NOTE)
local again = ProtoExpert.new("siwarp.again", "This PSN was seen before",
	expert.group.SEQUENCE, expert.severity.NOTE)
local bad_private = ProtoExpert.new("siwarp.bad_private", "An unknown private message",
	expert.group.PROTOCOL, expert.severity.WARN)
local bad_record = ProtoExpert.new("siwarp.bad_record", "The segment does not fit in its message",
	expert.group.PROTOCOL, expert.severity.WARN)
siwarp.experts = {
	bad_crc, bad_header, too_short, bad_llp, no_answer, bad_offer, bad_cookie, unknown, again, bad_private,
	bad_record, bad_sidr,
}
siwarp.prefs.chain = Pref.bool("Show DDP and RDMAP by the stock dissector too", true)

local HEADER, TAGGED, CRC = 18, 14, 4
local LLP, RD, COOKIE, RECORD, ACK_HEAD, RANGE, REPORT = 12, 36, 20, 20, 8, 4, 40
local REPORT_TYPE = 3
local UC_TYPE, RECORD_TYPE, DATA, ACK, HELLO, CHALLENGE, ECHO, PROBE, BYE = 1, 2, 4, 5, 6, 7, 8, 9, 10
local VERSIONS, OFFER_HEAD, HELLO_LEAST = 11, 4, 64
local LONGEST, WINDOW, FEATURES, INSTANCE = 1, 2, 3, 4
local PRIVATE = 15
local SIDR, SIDR_HEAD, SIDR_DATA, SIDR_ANSWER_DATA = 232, 48, 180, 136
local QUESTION, ANSWER, REFUSAL, COOKIE_FRAME = 1, 2, 3, 4

local function is_sound(octets)
	return crc32c(octets:sub(1, -5)) == Struct.unpack("<I4", octets, #octets - 3)
end

-- Return the size of the datagrams in a packet that was captured before the kernel split it into
-- datagrams of one size (UDP_SEGMENT): the first length with a valid CRC. Return nil if there is
-- none.
local function train_size(octets)
	local c = 0xffffffff
	for i = 1, #octets - HEADER - CRC do
		if i > HEADER and 0xffffffff - c == Struct.unpack("<I4", octets, i) then
			for at = i + CRC, #octets, i + CRC - 1 do
				local piece = octets:sub(at, at + i + CRC - 2)
				if #piece < HEADER + CRC or not is_sound(piece) then
					return nil
				end
			end
			return i + CRC - 1
		end
		c = crc_step(c, octets:byte(i))
	end
	return nil
end

-- Whether the first octet is that of an LLP header.
local function is_llp(tvb)
	return tvb:len() > 0 and bits.band(tvb(0, 1):uint(), 0x03) == 2
end

-- Return the length of the LLP header, for RD types including RD's header; nil for an unknown type.
local function llp_header(kind)
	return llp_types[kind] and (kind < DATA and LLP or RD)
end

-- Whether this is a complete LLP header of a queue pair with its own socket; used if no CRC proves
-- it.
local function plausible_llp(tvb)
	local kind = math.floor(tvb(0, 1):uint() / 16)
	local head = llp_header(kind)
	if head == nil or tvb:len() < head + CRC or bits.band(tvb(0, 1):uint(), 0x0f) ~= 6
		or tvb(1, 1):uint() > 1 or tvb(2, 2):uint() ~= 0 then
		return false
	end
	if kind >= DATA and (tvb(12, 4):uint() == 0 and kind ~= VERSIONS or tvb(35, 1):uint() > 15) then
		return false
	end
	return kind > DATA or tvb:len() >= head + TAGGED + CRC
		and bits.band(tvb(head, 1):uint(), 0x3f) == 1 and bits.band(tvb(head + 1, 1):uint(), 0xf0) == 0x40
end

local function plausible(tvb)
	if is_llp(tvb) then
		return plausible_llp(tvb)
	end
	return tvb:len() >= HEADER + CRC and bits.band(tvb(0, 1):uint(), 0xc3) == 0x41
		and bits.band(tvb(1, 1):uint(), 0xf8) == 0x40 and tvb(14, 4):uint() == 0
end

-- Show the header that an error message quotes, from the message that caused the error.
local function add_quoted_header(tree, range)
	if range:len() < 7 or bits.band(range(2, 1):uint(), 0x40) == 0 then
		return ""
	end
	if bits.band(range(6, 1):uint(), 0x80) ~= 0 then
		local whole = bits.band(range(2, 1):uint(), 0x20) ~= 0 and range:len() == 6 + TAGGED + RECORD
		if not whole or range(6 + TAGGED, 1):uint() ~= 3 then
			return ""
		end
		tree:add(f.about_id, range(6 + TAGGED + 4, 4))
		return string.format(", about Write-Record %d", range(6 + TAGGED + 4, 4):uint())
	end
	if range:len() < 24 then
		return ""
	end
	tree:add(f.about_q_key, range(8, 4))
	tree:add(f.about_qn, range(12, 4))
	tree:add(f.about_msn, range(16, 4))
	return string.format(", about MSN %d", range(16, 4):uint())
end

-- Show the first octets of a private message or of Immediate Data; return the message's name, or
-- nil.
local function add_head(tree, range, opcode)
	if opcode ~= PRIVATE then
		if range:len() == 8 then
			tree:add(f.imm, range(0, 4))
		end
		return nil
	end
	local name = range:len() >= 8 and range(0, 1):uint() < 3 and privates[range(0, 1):uint()]
	if range:len() > 0 then
		tree:add(f.private, range(0, 1))
	end
	if not name then
		tree:add_proto_expert_info(bad_private)
		return nil
	end
	tree:add(f.imm, range(4, 4))
	return string.format("%s 0x%08x", name, range(4, 4):uint())
end

-- Show a tagged private message without payload on a connection; return nil for another segment.
local function add_tagged_private(tree, range)
	local subcode = range(2, 1):uint()
	if range:len() ~= TAGGED or (subcode ~= 4 and subcode ~= 5) then
		return nil
	end
	tree:add(f.private, range(2, 1))
	if subcode == 4 then
		tree:add(f.sends, range(6, 4))
		tree:add(f.writes, range(10, 4))
		return string.format("Delivery count: %d Sends, %d Writes", range(6, 4):uint(), range(10, 4):uint())
	end
	tree:add(f.wants_counts, range(12, 1))
	tree:add(f.rnr_retry, range(13, 1))
	return string.format("Requester, rnr_retry %d", range(13, 1):uint())
end

-- Show RDMAP's header of a Write-Record, after a tagged DDP header. `range`: the complete segment.
local function add_record(tree, range)
	local head = range:len() >= TAGGED + RECORD and range(TAGGED, RECORD)
	if not head or head(0, 1):uint() ~= 3 then
		tree:add_proto_expert_info(bad_private)
		return "no Write-Record"
	end
	tree:add(f.private, head(0, 1))
	tree:add(f.rec_solicited, head(1, 1))
	tree:add(f.rec_id, head(4, 4))
	tree:add(f.rec_to, head(8, 8))
	tree:add(f.rec_length, head(16, 4))
	local from = range(6, 8):uint64() - head(8, 8):uint64()
	local start, octets, length = from:lower(), range:len() - TAGGED - RECORD, head(16, 4):uint()
	local last = bits.band(range(0, 1):uint(), 0x40) ~= 0
	if from:higher() ~= 0 or start + octets > length or last ~= (start + octets == length) then
		tree:add_proto_expert_info(bad_record)
	end
	return string.format("Write-Record %d, octets %d to %d of %d", head(4, 4):uint(), start,
		start + octets, length)
end

local function add_terminate_of(tree, range)
	if range:len() < 4 then
		return ""
	end
	add_quoted_request(tree, f, range)
	return ", " .. add_terminate(tree, f, range) .. add_quoted_header(tree, range)
end

-- Show a DDP segment; return its description, or nil if it is too short for its header. `q_key`:
-- whether the header field after the control octets is a Q_Key.
local function add_segment(tree, range, q_key)
	local tagged = range:len() > 0 and bits.band(range(0, 1):uint(), 0x80) ~= 0
	local head = tagged and TAGGED or HEADER
	if range:len() < head then
		tree:add_proto_expert_info(too_short)
		return nil
	end
	local opcode, length = range(1, 1):uint() % 16, range:len() - head
	tree:add(f.last, range(0, 1))
	tree:add(f.dv, range(0, 1))
	tree:add(f.rv, range(1, 1))
	tree:add(f.opcode, range(1, 1))
	if bits.band(range(0, 1):uint(), 0x03) ~= 1 or opcodes[opcode] == nil then
		tree:add_proto_expert_info(bad_header)
	end
	local name = opcodes[opcode] or "opcode " .. opcode
	if tagged then
		tree:add(f.stag, range(2, 4))
		tree:add(f.to, range(6, 8))
		tree:add(f.length, length):set_generated()
		return opcode == PRIVATE and (add_tagged_private(tree, range) or add_record(tree, range)) or string.format("%s, %d octets", name, length)
	end
	if q_key then
		tree:add(f.q_key, range(2, 4))
	end
	local qn = tree:add(f.qn, range(6, 4))
	qn:add(f.queue, range(6, 4))
	if q_key then
		qn:add(f.dest_index, range(6, 4))
		qn:add(f.source_index, range(6, 4))
	end
	tree:add(f.msn, range(10, 4))
	tree:add(f.mo, range(14, 4))
	tree:add(f.length, length):set_generated()
	local mo, more = range(14, 4):uint(), ""
	if mo == 0 and (opcode == 8 or opcode == 9 or opcode == PRIVATE) and length > 0 then
		name = add_head(tree, range(head, length), opcode) or name
	elseif opcode == PRIVATE and mo == 0 then
		tree:add_proto_expert_info(bad_private)
	end
	if opcode == 7 and length > 0 then
		more = add_terminate_of(tree, range(head, length))
	end
	local place = mo > 0 and string.format(" MO=%d", mo) or ""
	return string.format("%s MSN=%d%s, %d octets%s", name, range(10, 4):uint(), place, length, more)
end

-- Show the CRC, and the segment with the stock dissector; return text for the end of the Info
-- column.
local function add_rest(tvb, pinfo, root, tree, from)
	local status = add_crc(tree, f, tvb(), bad_crc, "perhaps")
	local octets = tvb:len() - CRC - (from or 0)
	if status == "Bad" then
		return " [Bad CRC32]"
	end
	if from and octets > 0 and siwarp.prefs.chain then
		chain(tvb(from, octets):tvb(), pinfo, root, tree, bad_header)
		pinfo.cols.protocol = "SIWARP"
	end
	return ""
end

local function add_datagram(tvb, pinfo, root)
	pinfo.cols.protocol = "SIWARP"
	local tree = root:add(siwarp, tvb())
	if tvb:len() < HEADER + CRC then
		tree:add_proto_expert_info(too_short)
		pinfo.cols.info = "too short"
		return
	end
	if bits.band(tvb(0, 1):uint(), 0xc0) ~= 0x40 then
		tree:add_proto_expert_info(bad_header)
	end
	local info = bits.band(tvb(0, 1):uint(), 0x80) == 0 and add_segment(tree, tvb(0, tvb:len() - CRC), true)
		or "tagged"
	pinfo.cols.info = info .. add_rest(tvb, pinfo, root, tree, 0)
end

-- ---- datagrams with an LLP header ---------------------------------------------------------------

-- Flow, type and epoch -> PSN -> the first frame with that PSN. In a capture of both sides, a
-- datagram appears once as sent and once as received; the packet's direction flag distinguishes
-- them.
local seen = {}
local direction = Field.new("frame.packet_flags_direction")

local function add_again(tree, tvb, pinfo, kind)
	local epoch = kind == DATA and tvb(12, 4):uint() or 0
	local space = kind == DATA and bits.band(tvb(35, 1):uint(), 0x04) or 0
	local flow = table.concat({ tostring(pinfo.src), pinfo.src_port, tostring(pinfo.dst), pinfo.dst_port,
		kind, epoch, space, tvb(4, 4):uint(), tostring(direction() or "") }, " ")
	local psn = tvb(8, 4):uint()
	seen[flow] = seen[flow] or {}
	seen[flow][psn] = seen[flow][psn] or pinfo.number
	if seen[flow][psn] ~= pinfo.number then
		tree:add(f.first_seen, seen[flow][psn]):set_generated()
		tree:add_proto_expert_info(again)
	end
end

-- Show the body of an ACK; return the number of datagrams received after the first missing one.
local function add_ack(tree, range)
	local ranges = range and range:len() >= ACK_HEAD and range(5, 1):uint() + range(6, 1):uint()
	if not ranges or range:len() ~= ACK_HEAD + ranges * RANGE then
		tree:add_proto_expert_info(bad_llp)
		return 0
	end
	tree:add(f.rd_ce, range(0, 4))
	tree:add(f.rd_rnr_timer, range(4, 1))
	local early = 0
	for i = 0, ranges - 1 do
		early = early + range(ACK_HEAD + i * RANGE + 2, 2):uint()
	end
	if ranges > 0 then
		tree:add(f.rd_ranges, range(ACK_HEAD))
	end
	tree:add(f.rd_early, early):set_generated()
	return early
end

local options = {
	[LONGEST] = { 4, f.rd_longest }, [WINDOW] = { 4, f.rd_window }, [FEATURES] = { 4, f.rd_features },
	[INSTANCE] = { 8, f.rd_instance },
}

-- Show the head and the options of a handshake; return their length in octets, or nil if malformed.
local function add_offer(tree, range)
	local octets = range and range:len() >= OFFER_HEAD and OFFER_HEAD + range(2, 2):uint()
	if not octets or octets > range:len() then
		tree:add_proto_expert_info(bad_offer)
		return nil
	end
	tree:add(f.rd_versions, range(0, 1))
	local at = OFFER_HEAD
	while at < octets do
		local length = at + 2 <= octets and range(at + 1, 1):uint()
		if not length or at + 2 + length > octets then
			tree:add_proto_expert_info(bad_offer)
			return nil
		end
		local field = options[range(at, 1):uint()]
		local option = tree:add(f.rd_option, range(at, 1))
		if field and length == field[1] then
			option:add(field[2], range(at + 2, length))
		elseif length > 0 then
			option:add(f.rd_option_value, range(at + 2, length))
		end
		at = at + 2 + length
	end
	return octets
end

-- Show the fields of a handshake after RD's header.
local function add_handshake(tree, range, kind)
	local octets = add_offer(tree, range)
	local rest = octets and range:len() - octets or 0
	if kind == HELLO then
		if not range or range:len() < HELLO_LEAST then
			tree:add_proto_expert_info(no_answer)
		end
		tree:add(f.rd_padding, rest):set_generated()
	elseif kind ~= VERSIONS and octets then
		if rest ~= COOKIE then
			tree:add_proto_expert_info(bad_cookie)
		else
			tree:add(f.rd_cookie, range(octets))
		end
	end
	return ""
end

-- Show the fields after RD's header, by type; return text for the Info column.
local function add_of_rd(tree, tvb, kind)
	local length = tvb:len() - RD - CRC
	local range = length > 0 and tvb(RD, length)
	if kind == ACK then
		local early = add_ack(tree, range)
		return early > 0 and string.format(", and %d after a gap", early) or ""
	elseif kind >= HELLO and kind <= ECHO or kind == VERSIONS then
		return add_handshake(tree, range or nil, kind)
	elseif kind == BYE and length ~= 0 then
		tree:add_proto_expert_info(bad_llp)
	end
	tree:add(f.rd_padding, length):set_generated()
	return ""
end

local function add_rd_header(tree, tvb, kind)
	tree:add(f.rd_source, tvb(12, 4))
	tree:add(f.rd_dest, tvb(16, 4))
	tree:add(f.rd_acked, tvb(20, 4))
	tree:add(f.rd_response_acked, tvb(24, 4))
	tree:add(f.rd_credit, tvb(28, 2))
	tree:add(f.rd_response_credit, tvb(30, 2))
	tree:add(f.rd_delay, tvb(32, 2))
	tree:add(kind == BYE and f.rd_reason or f.rd_ird, tvb(34, 1))
	local flags = tree:add(f.rd_flags, tvb(35, 1))
	flags:add(f.rd_probed, tvb(35, 1))
	flags:add(f.rd_answer, tvb(35, 1))
	flags:add(f.rd_response, tvb(35, 1))
	flags:add(f.rd_not_ready, tvb(35, 1))
	if tvb(12, 4):uint() == 0 and kind ~= BYE and kind ~= VERSIONS then
		tree:add_proto_expert_info(bad_llp)
	end
	if kind == BYE and tvb(34, 1):uint() == 1 then
		tree:add_proto_expert_info(unknown)
	end
	return string.format(" Ack=%d", tvb(20, 4):uint())
end

-- Show a UC receiver's report of the received datagrams.
local function add_report(tree, tvb)
	if tvb:len() ~= REPORT then
		tree:add_proto_expert_info(bad_llp)
		return ""
	end
	tree:add(f.report_datagrams, tvb(12, 8))
	tree:add(f.report_octets, tvb(20, 8))
	tree:add(f.report_next, tvb(28, 4))
	return string.format(", %s datagrams received", tostring(tvb(12, 8):uint64()))
end

local function add_llp(tvb, pinfo, root)
	pinfo.cols.protocol = "SIWARP"
	local tree = root:add(siwarp, tvb())
	local kind = math.floor(tvb(0, 1):uint() / 16)
	local head = llp_header(kind)
	if tvb:len() < (head or LLP) + CRC then
		tree:add_proto_expert_info(too_short)
		pinfo.cols.info = "too short"
		return
	end
	tree:add(f.llp_type, tvb(0, 1))
	tree:add(f.llp_version, tvb(0, 1))
	local flags = tree:add(f.llp_flags, tvb(1, 1))
	tree:add(f.llp_dest, tvb(2, 1))
	tree:add(f.llp_source, tvb(3, 1))
	tree:add(f.q_key, tvb(4, 4))
	tree:add(f.psn, tvb(8, 4))
	if head == nil or bits.band(tvb(0, 1):uint(), 0x0c) ~= 0x04 then
		tree:add_proto_expert_info(bad_llp)
	end
	local info = string.format("%s PSN=%d", llp_types[kind] or "type " .. kind, tvb(8, 4):uint())
	if kind == UC_TYPE then
		flags:add(f.llp_first, tvb(1, 1))
	end
	if kind == REPORT_TYPE then
		info = info .. add_report(tree, tvb)
	end
	if kind >= DATA and head then
		info = info .. add_rd_header(tree, tvb, kind)
	end
	if kind == UC_TYPE or kind == DATA then
		add_again(tree, tvb, pinfo, kind)
	end
	local from = (kind == UC_TYPE or kind == RECORD_TYPE or kind == DATA) and head or nil
	if from then
		local words = add_segment(tree, tvb(from, tvb:len() - from - CRC), false)
		info = info .. " " .. (words or "too short")
		from = words and from -- otherwise the stock dissector is not called
	elseif head then
		info = info .. add_of_rd(tree, tvb, kind)
	end
	pinfo.cols.info = info .. add_rest(tvb, pinfo, root, tree, from)
end

-- ---- resolution of UD queue pairs ---------------------------------------------------------------

-- Whether the magic number of UD resolution is present; no datagram of a queue pair begins with it.
local function is_sidr(tvb)
	return tvb:len() >= 4 and tvb(0, 4):raw() == "SIWU"
end

-- Whether each field has a value that is valid for the frame's type.
local function sidr_holds(tvb, kind)
	local most = kind == QUESTION and SIDR_DATA or kind == COOKIE_FRAME and 0 or SIDR_ANSWER_DATA
	if tvb(4, 1):uint() ~= 1 or not sidr_types[kind] or tvb(7, 1):uint() > most
		or tvb(8, 8):uint64() == UInt64(0) then
		return false
	end
	if kind == ANSWER then
		local gid, qpn = tvb(32, 16):raw(), tvb(24, 4):uint()
		local mapped = gid:sub(1, 12) == string.rep("\0", 10) .. "\255\255"
		local group = gid:byte(1) == 255 or mapped and math.floor(gid:byte(13) / 16) == 14
		return qpn > 0 and qpn <= 0xfffffe and not group
	end
	return kind == QUESTION or kind == REFUSAL and tvb(6, 1):uint() > 0
		or kind == COOKIE_FRAME and tvb(16, 8):uint64() ~= UInt64(0)
end

-- id and both addresses -> the frame number of the question.
local asked = {}

local function add_asked(tree, pinfo, kind, id)
	local from = tostring(pinfo.src) .. " " .. pinfo.src_port
	local to = tostring(pinfo.dst) .. " " .. pinfo.dst_port
	if kind == QUESTION then
		local key = from .. " " .. to .. " " .. id
		asked[key] = asked[key] or pinfo.number
	elseif asked[to .. " " .. from .. " " .. id] then
		tree:add(f.sidr_asked, asked[to .. " " .. from .. " " .. id]):set_generated()
	end
end

-- Show the fields of a frame's type; return text for the Info column.
local function add_of_sidr(tree, tvb, kind)
	if kind == ANSWER then
		tree:add(f.sidr_qpn, tvb(24, 4))
		tree:add(f.q_key, tvb(28, 4))
		tree:add(f.sidr_gid, tvb(32, 16))
		return string.format(" QPN=0x%06x Q_Key=0x%08x", tvb(24, 4):uint(), tvb(28, 4):uint())
	elseif kind == REFUSAL then
		tree:add(f.sidr_status, tvb(6, 1))
		return ": " .. (sidr_statuses[tvb(6, 1):uint()] or "status " .. tvb(6, 1):uint())
	end
	tree:add(f.sidr_cookie, tvb(16, 8))
	return kind == QUESTION and tvb(16, 8):uint64() ~= UInt64(0) and " with a cookie" or ""
end

local function add_sidr(tvb, pinfo, root)
	pinfo.cols.protocol = "SIWARP"
	local tree = root:add(siwarp, tvb(), "UD resolution")
	if tvb:len() ~= SIDR then
		tree:add_proto_expert_info(tvb:reported_len() > tvb:len() and too_short or bad_sidr)
		pinfo.cols.info = string.format("UD resolution: %d octets instead of %d", tvb:len(), SIDR)
		return
	end
	local kind, octets = tvb(5, 1):uint(), tvb(7, 1):uint()
	local id = tostring(tvb(8, 8):uint64():tohex())
	tree:add(f.sidr_magic, tvb(0, 4))
	tree:add(f.sidr_version, tvb(4, 1))
	tree:add(f.sidr_type, tvb(5, 1))
	tree:add(f.sidr_data_len, tvb(7, 1))
	tree:add(f.sidr_id, tvb(8, 8))
	local info = "UD resolution: " .. (sidr_types[kind] or "type " .. kind) .. add_of_sidr(tree, tvb, kind)
	if octets > 0 and octets <= SIDR_DATA then
		tree:add(f.sidr_data, tvb(SIDR_HEAD, octets))
	end
	if not sidr_holds(tvb, kind) then
		tree:add_proto_expert_info(bad_sidr)
	end
	add_asked(tree, pinfo, kind, id)
	local status = add_crc(tree, f, tvb(), bad_crc, true)
	pinfo.cols.info = info .. (status == "Bad" and " [Bad CRC32]" or "")
end

function siwarp.dissector(tvb, pinfo, root)
	if is_sidr(tvb) then
		add_sidr(tvb, pinfo, root)
		return tvb:len()
	end
	local one, size = is_llp(tvb) and add_llp or add_datagram, nil
	if tvb:len() > HEADER + CRC and plausible(tvb) and not is_sound(tvb:raw()) then
		size = train_size(tvb:raw())
	end
	for at = 0, tvb:len() - 1, size or tvb:len() do
		one(tvb(at, math.min(size or tvb:len(), tvb:len() - at)):tvb(), pinfo, root)
	end
	if tvb:reported_len() > tvb:len() then
		pinfo.cols.info:append(" [truncated by the capture]")
	end
	return tvb:len()
end

local function is_datagram(tvb)
	if is_sidr(tvb) then
		return true
	end
	if tvb:len() < HEADER + CRC or tvb:reported_len() > tvb:len()
		or bits.band(tvb(0, 1):uint(), 0x83) ~= 1 and not is_llp(tvb) then
		return false
	end
	local octets = tvb:raw()
	if is_sound(octets) then
		return true
	end
	return plausible(tvb) and (octets:sub(-4) == "\0\0\0\0" or train_size(octets) ~= nil)
end

local function datagram_heuristic(tvb, pinfo, root)
	if not is_datagram(tvb) then
		return false
	end
	siwarp.dissector(tvb, pinfo, root)
	pinfo.conversation = siwarp -- then invalid frames between the same addresses are shown too
	return true
end

siwarp:register_heuristic("udp", datagram_heuristic)
DissectorTable.get("udp.port"):add_for_decode_as(siwarp)

-- ---- MPA with Markers --------------------------------------------------------------------------

local mpa = Proto("siwarp_mpa", "MPA with Markers")
local m = shared_fields("siwarp_mpa")
m.key = ProtoField.string("siwarp_mpa.key", "Key")
m.m = ProtoField.bool("siwarp_mpa.m", "Asks for Markers", 8, nil, 0x80)
m.c = ProtoField.bool("siwarp_mpa.c", "Asks for CRC", 8, nil, 0x40)
m.r = ProtoField.bool("siwarp_mpa.r", "Rejected", 8, nil, 0x20)
m.s = ProtoField.bool("siwarp_mpa.s", "Enhanced", 8, nil, 0x10)
m.rev = ProtoField.uint8("siwarp_mpa.rev", "Revision")
m.pd_length = ProtoField.uint16("siwarp_mpa.pd_length", "Private data length")
m.a = ProtoField.bool("siwarp_mpa.a", "A: peer to peer", 16, nil, 0x8000)
m.b = ProtoField.bool("siwarp_mpa.b", "B: RTR by Send", 16, nil, 0x4000)
m.ird = ProtoField.uint16("siwarp_mpa.ird", "IRD", base.DEC, nil, 0x3fff)
m.c_rtr = ProtoField.bool("siwarp_mpa.c_rtr", "C: RTR by Write", 16, nil, 0x8000)
m.d_rtr = ProtoField.bool("siwarp_mpa.d_rtr", "D: RTR by Read", 16, nil, 0x4000)
m.ord = ProtoField.uint16("siwarp_mpa.ord", "ORD", base.DEC, nil, 0x3fff)
m.private_data = ProtoField.bytes("siwarp_mpa.private_data", "Private data")
m.ulpdu_length = ProtoField.uint16("siwarp_mpa.ulpdu_length", "ULPDU length")
m.marker = ProtoField.uint32("siwarp_mpa.marker", "Marker", base.HEX)
mpa.fields = listed(m)
local mpa_bad_crc = ProtoExpert.new("siwarp_mpa.bad_crc", "Wrong CRC", expert.group.CHECKSUM,
	expert.severity.ERROR)
local bad_marker = ProtoExpert.new("siwarp_mpa.bad_marker", "A Marker that does not point to its FPDU",
	expert.group.PROTOCOL, expert.severity.WARN)
local mpa_bad_header = ProtoExpert.new("siwarp_mpa.bad_header", "A header that no receiver accepts",
	expert.group.MALFORMED, expert.severity.WARN)
mpa.experts = { mpa_bad_crc, bad_marker, mpa_bad_header }
mpa.prefs.all = Pref.bool("Show every MPA connection, also without Markers", false)

local REQUEST_KEY, REPLY_KEY = "MPA ID Req Frame", "MPA ID Rep Frame"
local STARTUP, SPACING = 20, 512

-- By connection, then by sender: whether the sender asks for Markers, and the distance in octets
-- from the first Marker to the sender's next octets. Keyed by addresses, because tcp.stream is not
-- available in the first pass.
local streams = {}
-- The same distance, for frames that are dissected again.
local begins = {}

function mpa.init()
	streams, begins = {}, {}
end

local function is_startup(tvb)
	if tvb:len() < STARTUP then
		return false
	end
	local key = tvb(0, 16):string()
	return key == REQUEST_KEY or key == REPLY_KEY
end

local function enhanced(tvb)
	return bits.band(tvb(16, 1):uint(), 0x10) ~= 0 and tvb(17, 1):uint() >= 2
		and tvb(18, 2):uint() >= 4 and tvb:len() >= STARTUP + 4
end

local function add_enhanced(tree, tvb)
	for _, name in ipairs({ "a", "b", "ird" }) do
		tree:add(m[name], tvb(STARTUP, 2))
	end
	for _, name in ipairs({ "c_rtr", "d_rtr", "ord" }) do
		tree:add(m[name], tvb(STARTUP + 2, 2))
	end
end

local function add_startup(tvb, pinfo, root)
	local key = tvb(0, 16):string()
	local length = tvb(18, 2):uint()
	local tree = root:add(mpa, tvb(0, STARTUP + length))
	tree:add(m.key, tvb(0, 16))
	for _, name in ipairs({ "m", "c", "r", "s" }) do
		tree:add(m[name], tvb(16, 1))
	end
	tree:add(m.rev, tvb(17, 1))
	tree:add(m.pd_length, tvb(18, 2))
	local at = STARTUP
	if enhanced(tvb) then
		add_enhanced(tree, tvb)
		at = at + 4
	end
	if STARTUP + length > at then
		tree:add(m.private_data, tvb(at, STARTUP + length - at))
	end
	pinfo.cols.info = key == REQUEST_KEY and "MPA Request" or "MPA Reply"
	return STARTUP + length
end

local function ends_of(pinfo)
	local from = tostring(pinfo.src) .. " " .. pinfo.src_port
	local to = tostring(pinfo.dst) .. " " .. pinfo.dst_port
	return from < to and from .. " " .. to or to .. " " .. from, from
end

-- Record the connection's parameters from a start-up frame.
local function learn(tvb, pinfo)
	local ends, from = ends_of(pinfo)
	local known = streams[ends]
	if known == nil or (tvb(0, 16):string() == REQUEST_KEY and known.request ~= pinfo.number) then
		known = { asks = {}, next = {}, crc = false, request = pinfo.number }
		streams[ends] = known
	end
	known.asks[from] = bits.band(tvb(16, 1):uint(), 0x80) ~= 0
	known.next[from] = known.next[from] or 0
	known.crc = known.crc or bits.band(tvb(16, 1):uint(), 0x40) ~= 0
	return known
end

-- Return the distance in octets of this packet's payload from the first Marker.
local function begin_of(tvb, pinfo, known, from)
	local head = tvb(0, math.min(tvb:len(), 64)):raw()
	local key = pinfo.number .. "/" .. tvb:len() .. "/" .. crc32c(head)
	if not pinfo.visited then
		begins[key] = known.next[from]
	end
	return begins[key]
end

-- Return the plain octets and the end of the FPDU that begins at `at` of the tvb, `here` octets
-- after the first Marker; or nil and the number of octets needed if it is incomplete.
local function take(tvb, at, here, marked, on_marker)
	local plain, want, head = ByteArray.new(), 2, here
	while plain:len() < want do
		if marked and here % SPACING == 0 then
			if tvb:len() < at + 4 then
				return nil, at + 4
			end
			if plain:len() == 0 then
				head = here + 4
			end
			on_marker(tvb(at, 4), here < head and 0 or here - head)
			at, here = at + 4, here + 4
		end
		local piece = want - plain:len()
		if marked then
			piece = math.min(piece, SPACING - here % SPACING)
		end
		if tvb:len() < at + piece then
			return nil, at + piece
		end
		plain:append(tvb(at, piece):bytes())
		at, here = at + piece, here + piece
		if want == 2 and plain:len() == 2 then
			local length = plain:get_index(0) * 256 + plain:get_index(1)
			want = 2 + length + (-(2 + length)) % 4 + CRC
		end
	end
	return plain, at
end

local function add_fpdu(tvb, pinfo, root, at, here, known, marked)
	local found = {}
	local plain, stop = take(tvb, at, here, marked, function(range, due)
		found[#found + 1] = { range = range, due = due }
	end)
	if plain == nil then
		return nil, stop
	end
	local tree = root:add(mpa, tvb(at, stop - at), "MPA FPDU")
	local length = plain:get_index(0) * 256 + plain:get_index(1)
	tree:add(m.ulpdu_length, length):set_generated()
	for _, marker in ipairs(found) do
		local item = tree:add(m.marker, marker.range)
		local says = marker.range(2, 2):uint()
		if says - says % 4 ~= marker.due then
			item:add_proto_expert_info(bad_marker)
		end
	end
	local status = add_crc(tree, m, tvb(at, stop - at), mpa_bad_crc, known.crc)
	if status ~= "Bad" and length > 0 then
		chain(plain:subset(2, length):tvb("FPDU without Markers"), pinfo, root, tree, mpa_bad_header)
	end
	return stop
end

function mpa.dissector(tvb, pinfo, root)
	pinfo.cols.protocol = "SIWARP_MPA"
	local at = 0
	if is_startup(tvb) then
		local whole = STARTUP + tvb(18, 2):uint()
		if tvb:len() < whole then
			pinfo.desegment_offset, pinfo.desegment_len = 0, whole - tvb:len()
			return
		end
		learn(tvb, pinfo)
		at = add_startup(tvb, pinfo, root)
	end
	local ends, from = ends_of(pinfo)
	local known = streams[ends]
	if known == nil or known.next[from] == nil then
		return tvb:len()
	end
	local marked = false
	for other, asks in pairs(known.asks) do
		marked = marked or (other ~= from and asks)
	end
	local begin = at == 0 and begin_of(tvb, pinfo, known, from) or -at
	if begin == nil then
		return tvb:len()
	end
	while at < tvb:len() do
		local stop, need = add_fpdu(tvb, pinfo, root, at, begin + at, known, marked)
		if stop == nil then
			pinfo.desegment_offset = at
			pinfo.desegment_len = math.max(need - tvb:len(), 1)
			break
		end
		at = stop
	end
	if not pinfo.visited then
		known.next[from] = begin + at
	end
	return tvb:len()
end

-- The stock dissector keeps every connection that it has started to dissect, so the Request
-- decides: at that time it is unknown whether the Reply will ask for Markers.
local function mpa_heuristic(tvb, pinfo, root)
	if not is_startup(tvb) then
		return false
	end
	local asks = bits.band(tvb(16, 1):uint(), 0x80) ~= 0
	if not asks and not mpa.prefs.all then
		return false
	end
	pinfo.conversation = mpa
	mpa.dissector(tvb, pinfo, root)
	return true
end

mpa:register_heuristic("tcp", mpa_heuristic)
DissectorTable.get("tcp.port"):add_for_decode_as(mpa)

-- ---- in addition to the stock dissectors --------------------------------------------------------

local more = Proto("siwarp_more", "iWARP, additional fields")
local rev_field, term_field = Field.new("iwarp_mpa.rev"), Field.new("iwarp_rdma.term_layer")
local opcode_field = Field.new("iwarp_rdma.opcode")
local own_crc_field = Field.new("siwarp.crc")

-- Return the octets from `before` octets before a field to the end of the field's source.
local function around(info, before)
	local source = info.source
	local at = info.offset - before
	return at >= 0 and source:range(at, source:len() - at) or nil
end

local function more_of_startup(range, root)
	local tvb = range:tvb()
	if is_startup(tvb) and enhanced(tvb) then
		add_enhanced(root:add(more, range(STARTUP, 4)), tvb)
	end
end

-- Return the tagged segment without payload whose second octet is this field; nil for another
-- segment. The FPDU's length precedes the segment, unless Markers were removed.
local function tagged_private_at(info)
	local range = info.value == PRIVATE and around(info, 1)
	if not range or range:len() < TAGGED or bits.band(range(0, 1):uint(), 0x80) == 0 then
		return nil
	end
	local framed = around(info, 3)
	local length = framed and framed(0, 2):uint() or range:len()
	return length == TAGGED and range(0, TAGGED) or nil
end

function more.dissector(_, pinfo, root)
	for _, info in ipairs({ rev_field() }) do
		local range = around(info, 17)
		if range then
			more_of_startup(range, root)
		end
	end
	for _, info in ipairs(own_crc_field() and {} or { term_field() }) do
		local range = around(info, 0)
		if range and range:len() >= 4 and bits.band(range(2, 1):uint(), 0x20) ~= 0 then
			add_quoted_request(root:add(more, range()), m, range)
		end
	end
	for _, info in ipairs(own_crc_field() and {} or { opcode_field() }) do
		local range = tagged_private_at(info)
		local tree = range and root:add(more, range)
		local told = tree and add_tagged_private(tree, range)
		if told then
			tree:append_text(": " .. told)
			pinfo.cols.info:append(", " .. told)
		end
	end
end

register_postdissector(more)
