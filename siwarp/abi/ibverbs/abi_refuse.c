/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_refuse.c - refused calls: records the reason, and logs it. A program that knows
 * only verbs gets an errno value; with SIWARP_LOG=warn the log contains the reason. This file is
 * part of libibverbs.so.1 and of librdmacm.so.1.
 */
#include <stdarg.h>
#include <stdio.h>

#include "abi/ibverbs/abi.h"

#define REASON_OCTETS 512

/*
 * Phrases in the engine's reasons, and the phrases that replace them for programs that know only
 * verbs. If several match, the first one in the table is used.
 */
static const struct phrase {
	const char *engine, *verbs;
} phrases[] = {
	{ "<siwarp/cm.h>", "librdmacm" },
	{ "siw_cm_bind_qp", "rdma_create_qp" },
	{ "siw_cm_get_event", "rdma_get_cm_event" },
	{ "siw_cm_set_device", "rdma_bind_addr or rdma_resolve_addr" },
	{ "siw_cm_", "rdma_" },
	{ "siw_qp_num of", "qp_num of" },
	{ "siw_query_device_info", "ibv_query_gid_table" },
	{ "siw_create_ah and set wr.ud.ah (UD messages) or rd.ah (RD, Write-Records)",
	  "ibv_create_ah and set wr.ud.ah" },
	{ ", or share a socket among up to 256 QPs by siw_qp_init_attr.shared_socket_qp", "" },
	{ "ah_addr (SIW_QP_AV)", "ah_attr (IBV_QP_AV)" },
	{ "ah_source", "the GID of ah_attr.grh.sgid_index" },
	{ "siw_", "ibv_" },
	{ "SIW_", "IBV_" },
};
#define N_PHRASES (sizeof(phrases) / sizeof(phrases[0]))

static const struct phrase *find_engine_phrase_at(const char *text)
{
	for (size_t i = 0; i < N_PHRASES; i++)
		if (strncmp(text, phrases[i].engine, strlen(phrases[i].engine)) == 0)
			return &phrases[i];
	return NULL;
}

/* Copies the text of a reason, with the names of verbs instead of the engine's names. */
static void reason_copy_with_verbs_names(const char *text, char out[REASON_OCTETS])
{
	size_t n = 0;

	while (*text) {
		const struct phrase *phrase = find_engine_phrase_at(text);
		const char *from = phrase ? phrase->verbs : text;
		size_t length = phrase ? strlen(phrase->verbs) : 1;

		if (length > REASON_OCTETS - 1 - n)
			break;
		memcpy(out + n, from, length);
		n += length;
		text += phrase ? strlen(phrase->engine) : 1;
	}
	out[n] = '\0';
}

int abi_refuse(int err, const char *format, ...)
{
	char text[REASON_OCTETS];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	siw_reason_record(text);
	return err;
}

/*
 * Returns the name by which programs call a function of this library. A function that an inline
 * function of verbs.h calls through a table of functions is named abi_NAME for ibv_NAME, or wr_NAME
 * for ibv_wr_NAME. Returns NULL for a function that programs do not call.
 */
static const char *public_name_of_function(const char *call, char name[64])
{
	if (strncmp(call, "ibv_", 4) == 0 || strncmp(call, "rdma_", 5) == 0)
		return call;
	if (strncmp(call, "abi_", 4) == 0)
		snprintf(name, 64, "ibv_%s", call + 4);
	else if (strncmp(call, "wr_", 3) == 0)
		snprintf(name, 64, "ibv_%s", call);
	else if (strncmp(call, "_ibv_", 5) == 0)
		return call + 1;
	else
		return NULL;
	return name;
}

int abi_set_errno_and_log_refusal(const char *call, int err)
{
	char text[REASON_OCTETS], name[64];

	/* Not logged: no event or completion is available, or a table has no such entry. */
	if (err != EAGAIN && err != EINTR && err != ENODATA) {
		reason_copy_with_verbs_names(siw_reason(), text);
		siw_log_refused_call(public_name_of_function(call, name), err, text);
	}
	errno = err;
	return err;
}
