/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mpa/mpa_frame.c - builds and parses MPA Request and Reply Frames. Uses no sockets and keeps no
 * state.
 */
#include <errno.h>
#include <string.h>

#include "mpa/mpa_stream.h"

static const char *startup_frame_key(bool reply)
{
	return reply ? SIW_MPA_KEY_REPLY : SIW_MPA_KEY_REQUEST;
}

/*
 * Returns whether this end may send a frame with these parameters. Revision 0 is the RDMA
 * Consortium's protocol, which siwarp does not support.
 */
bool siw_mpa_params_are_legal(const struct siw_mpa_params *p, bool reply)
{
	uint32_t room = SIW_MPA_MAX_PDATA;

	if (p->rev != 1 && p->rev != 2)
		return false;
	if (p->rejected && !reply)
		return false;
	if (p->enhanced)
		room -= sizeof(struct siw_mpa_enhanced);
	if (p->pdata_len > room)
		return false;
	if (!p->enhanced)
		return !p->p2p && !p->rtr;
	if (p->rev < 2 || p->ird > SIW_MPA_MAX_IRD || p->ord > SIW_MPA_MAX_IRD) /* RFC6581-6-02 */
		return false;
	if (p->rtr & ~(SIW_MPA_RTR_FPDU | SIW_MPA_RTR_WRITE | SIW_MPA_RTR_READ))
		return false;
	/* With bit A: RFC6581-9.2-02, -08. Without bit A: RFC6581-9.2-14. */
	return p->p2p ? p->rtr != 0 : p->rtr == 0;
}

static void write_enhanced_data(uint8_t *at, const struct siw_mpa_params *p)
{
	struct siw_mpa_enhanced *e = (struct siw_mpa_enhanced *)at;
	uint32_t ird = p->ird, ord = p->ord;

	if (p->p2p)
		ird |= SIW_MPA_BIT_A;
	if (p->rtr & SIW_MPA_RTR_FPDU)
		ird |= SIW_MPA_BIT_B;
	if (p->rtr & SIW_MPA_RTR_WRITE)
		ord |= SIW_MPA_BIT_C;
	if (p->rtr & SIW_MPA_RTR_READ)
		ord |= SIW_MPA_BIT_D;
	siw_mpa_put_be16(e->ird, ird);
	siw_mpa_put_be16(e->ord, ord);
}

static void parse_enhanced_data(const uint8_t *at, struct siw_mpa_params *p)
{
	const struct siw_mpa_enhanced *e = (const struct siw_mpa_enhanced *)at;
	uint32_t ird = siw_mpa_be16(e->ird), ord = siw_mpa_be16(e->ord);

	p->enhanced = 1;
	p->ird = ird & SIW_MPA_MAX_IRD;
	p->ord = ord & SIW_MPA_MAX_IRD;
	p->p2p = !!(ird & SIW_MPA_BIT_A);
	if (!p->p2p) /* RFC6581-9.2-15: without A the bits B, C and D have no meaning */
		return;
	p->rtr |= ird & SIW_MPA_BIT_B ? SIW_MPA_RTR_FPDU : 0;
	p->rtr |= ord & SIW_MPA_BIT_C ? SIW_MPA_RTR_WRITE : 0;
	p->rtr |= ord & SIW_MPA_BIT_D ? SIW_MPA_RTR_READ : 0;
}

static uint8_t flags_of_features(uint8_t features, bool reply)
{
	uint8_t flags = reply ? SIW_MPA_FLAG_P : SIW_MPA_FLAG_Q;

	if (!(features & SIW_MPA_SIWARP))
		return 0;
	return flags | (features & SIW_MPA_COUNTS ? SIW_MPA_FLAG_D : 0);
}

/* Any other pattern, such as a Request's bits repeated in a Reply, announces no features. */
static uint8_t mpa_features_from_flags(uint8_t flags, bool reply)
{
	if ((flags & SIW_MPA_FLAGS_ROLE) != (reply ? SIW_MPA_FLAG_P : SIW_MPA_FLAG_Q))
		return 0;
	return SIW_MPA_SIWARP | (flags & SIW_MPA_FLAG_D ? SIW_MPA_COUNTS : 0);
}

uint32_t siw_mpa_startup_frame_build(uint8_t *frame, const struct siw_mpa_params *p, bool reply)
{
	struct siw_mpa_frame *f = (struct siw_mpa_frame *)frame;
	uint8_t *pd = frame + sizeof(*f);

	memcpy(f->key, startup_frame_key(reply), SIW_MPA_KEY_LEN);
	f->flags = (p->markers ? SIW_MPA_FLAG_M : 0) | (p->crc ? SIW_MPA_FLAG_C : 0) |
		   (p->rejected ? SIW_MPA_FLAG_R : 0) | (p->enhanced ? SIW_MPA_FLAG_S : 0) |
		   flags_of_features(p->features, reply);
	f->rev = p->rev;
	if (p->enhanced) {
		write_enhanced_data(pd, p);
		pd += sizeof(struct siw_mpa_enhanced);
	}
	memcpy(pd, p->pdata, p->pdata_len);
	pd += p->pdata_len;
	/* RFC 6581 section 6: the length counts the enhanced data too. */
	siw_mpa_put_be16(f->pd_length, (uint32_t)(pd - frame - (ptrdiff_t)sizeof(*f)));
	return (uint32_t)(pd - frame);
}

/*
 * A wrong key is reported at its first wrong octet, and a wrong length as soon as the header has
 * arrived, so that a peer that speaks another protocol is detected early (RFC5044-8-05).
 */
int siw_mpa_startup_frame_missing_octets(const uint8_t *frame, uint32_t len, bool reply)
{
	const struct siw_mpa_frame *f = (const struct siw_mpa_frame *)frame;
	uint32_t pd;

	if (memcmp(frame, startup_frame_key(reply),
		   len < SIW_MPA_KEY_LEN ? len : SIW_MPA_KEY_LEN) != 0)
		/*
		 * not a key (RFC5044-7.1.1-02, -04), or a Request although this end is the
		 * initiator, too (RFC5044-7.1.2-15)
		 */
		return -EPROTO;
	if (len < sizeof(*f))
		return (int)(sizeof(*f) - len);
	pd = siw_mpa_be16(f->pd_length);
	if (pd > SIW_MPA_MAX_PDATA) /* RFC5044-7.1.1-18 */
		return -EPROTO;
	return (int)(sizeof(*f) + pd - len);
}

int siw_mpa_startup_frame_parse(const uint8_t *frame, bool reply, struct siw_mpa_params *out)
{
	const struct siw_mpa_frame *f = (const struct siw_mpa_frame *)frame;
	const uint8_t *pd = frame + sizeof(*f);
	uint32_t len = siw_mpa_be16(f->pd_length);

	memset(out, 0, sizeof(*out));
	out->rev = f->rev;
	out->markers = !!(f->flags & SIW_MPA_FLAG_M);
	out->crc = !!(f->flags & SIW_MPA_FLAG_C);
	out->rejected = !!(f->flags & SIW_MPA_FLAG_R);
	out->features = mpa_features_from_flags(f->flags, reply);
	/* In revisions 0 and 1 the bit S is reserved (RFC5044-7.1.1-13, RFC6581-6-02). */
	if (f->rev >= 2 && f->flags & SIW_MPA_FLAG_S) {
		if (len < sizeof(struct siw_mpa_enhanced)) /* RFC6581-6-05 */
			return -EPROTO;
		parse_enhanced_data(pd, out);
		pd += sizeof(struct siw_mpa_enhanced);
		len -= sizeof(struct siw_mpa_enhanced);
	}
	memcpy(out->pdata, pd, len);
	out->pdata_len = (uint16_t)len;
	return 0;
}
