/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * mem/mem_stag.c - STags: the memory that they name, their access rights, and invalidation (RFC
 * 5041 sections 8.2, 8.3; RFC 5042).
 *
 * The top bit of an STag distinguishes two kinds.
 * - 0: a region, or a window of type 1. The other 31 bits are a keyed permutation of (index, 20
 *   bits; generation, 11 bits). An STag therefore cannot be computed from other STags, and a freed
 *   STag does not match the next STag at its index.
 * - 1: a window whose owner chooses the lowest octet at each binding (type 2 of verbs). The 23 bits
 *   in the middle are another such permutation, of (index, 20 bits; generation, 3 bits), and the
 *   same for all 256 STags of the window. Such a window is bound to one stream, so guessing its
 *   STag does not help any other peer.
 *
 * Free indexes are reused in the order in which they were freed, so that a generation recurs as
 * late as possible.
 *
 * Look-ups take no lock. The word of an entry consists of its generation, a live bit, a reference
 * count, and an invalid bit. The invalid bit is set when the peer has invalidated the STag; such an
 * STag is not free, because its owner may still use it. A look-up that grants access adds a
 * reference before it reads the live bit. Freeing clears the live bit, and then waits until the
 * reference count is 0. A look-up of a local key takes no reference: it reads the fields between
 * two loads of the word.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/lock.h"
#include "mem/mem.h"

#define INDEX_BITS 20
#define CHUNK_BITS 10
#define CHUNKS	   (1u << (INDEX_BITS - CHUNK_BITS))
#define CHUNK	   (1u << CHUNK_BITS)
#define NONE	   UINT32_MAX
#define LIVE	   (1ull << 31)
#define INVALID	   (1ull << 30)
#define REFS	   (INVALID - 1)
#define GEN_SHIFT  32
#define GEN_MASK   0xfffu
#define TURN_SHIFT 44
#define TURN_ONE   (1ull << TURN_SHIFT)

#define WINDOW		(1u << 31) /* the top bit of an STag; set for a type 2 window */
#define REGION_BITS	31
#define WINDOW_BITS	23
#define REGION_GEN_BITS (REGION_BITS - INDEX_BITS)
#define WINDOW_GEN_BITS (WINDOW_BITS - INDEX_BITS)
/*
 * A bit that is set in the generation of a window of type 2, so that an STag of one kind never
 * matches an entry of the other kind.
 */
#define GEN_OF_WINDOW 0x800u
#define GEN_OCTET     0xffu /* the octet of a window's STag that its owner chooses */
/*
 * An index is reused only while more than this many free indexes wait, unless the table cannot
 * grow.
 */
#define MIN_FREE_INDEXES 256

struct siw_stag_entry {
	/* bits: 20 turn (uses of the index), 12 generation, 1 live, 1 invalid, 30 references */
	_Atomic uint64_t word;
	_Atomic(uint8_t *) addr;
	_Atomic uint64_t length;
	_Atomic uint64_t to_base;
	_Atomic(const struct siw_sge *) sgl;
	_Atomic(const void *) stream;
	_Atomic uint32_t rights;
	_Atomic uint32_t pd;
	_Atomic int nsge;
	uint32_t next; /* index of the next free entry; protected by the table's lock */
};
_Static_assert(sizeof(struct siw_stag_entry) == 64, "one cache line");

/* The key of a permutation of index and generation. */
struct siw_stag_key {
	uint32_t add[3];
	uint32_t mul[3];
	uint32_t inverse[3];
};

/* The table grows chunk by chunk. A chunk never moves, so look-ups need no lock. */
struct siw_mem {
	struct siw_stag_entry *_Atomic chunks[CHUNKS];
	struct siw_stag_key key, window_key; /* constant */
	/* lock that protects the members below; look-ups of STags do not acquire it */
	siw_lock_t lock;
	uint32_t n_chunks;
	/* queue of n_free free indexes; the oldest is reused first */
	uint32_t n_free, free_first, free_last;
};

/*
 * Fields are loaded with acquire order and stored with release order, which costs nothing on x86. A
 * later load of the member word is therefore not reordered before the loads of fields (see
 * resolve_local_sge()). load_field() pairs with store_field().
 */
#define load_field(e, f)     atomic_load_explicit(&(e)->f, memory_order_acquire)
#define store_field(e, f, v) atomic_store_explicit(&(e)->f, v, memory_order_release)

/* ---- the permutation of STags ---------------------------------------------------------------- */

/*
 * Permutes the bits of x in three rounds of keyed addition, multiplication by a keyed odd number,
 * and a fold of the upper half into the lower. A Feistel network of four rounds took 50% longer.
 */
static uint32_t permute_stag_bits(const struct siw_stag_key *key, uint32_t x, int bits)
{
	uint32_t mask = (1u << bits) - 1;
	int i;

	for (i = 0; i < 3; i++) {
		x = (x + key->add[i]) * key->mul[i] & mask;
		x ^= x >> ((bits + 1) / 2);
	}
	return x;
}

static inline uint32_t invert_stag_permutation(const struct siw_stag_key *key, uint32_t x, int bits)
{
	uint32_t mask = (1u << bits) - 1;
	int half = (bits + 1) / 2;

	x ^= x >> half;
	x = (x * key->inverse[2] - key->add[2]) & mask;
	x ^= x >> half;
	x = (x * key->inverse[1] - key->add[1]) & mask;
	x ^= x >> half;
	return (x * key->inverse[0] - key->add[0]) & mask;
}

static int draw_stag_secret(struct siw_stag_key *key)
{
	ssize_t n;
	int i, k;

	do {
		n = siw_getrandom(key, sizeof(*key), 0);
	} while (n < 0 && errno == EINTR);
	if (n != sizeof(*key))
		return -EIO;
	for (i = 0; i < 3; i++) {
		/* an inverse modulo 2^3; each step doubles the number of correct bits */
		uint32_t m = key->mul[i] | 1, inverse = m;

		for (k = 0; k < 4; k++)
			inverse *= 2 - m * inverse;
		key->mul[i] = m;
		key->inverse[i] = inverse;
	}
	return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static struct siw_stag_entry *stag_entry_at(struct siw_mem *mem, uint32_t index)
{
	/* Pairs with the store in stag_table_grow(): the chunk that is found has been zeroed. */
	struct siw_stag_entry *chunk =
		atomic_load_explicit(&mem->chunks[index >> CHUNK_BITS], memory_order_acquire);

	return chunk ? &chunk[index & (CHUNK - 1)] : NULL;
}

int siw_mem_stag_table_create(struct siw_mem **out)
{
	struct siw_mem *mem = calloc(1, sizeof(*mem));
	int r;

	if (!mem)
		return -ENOMEM;
	r = draw_stag_secret(&mem->key);
	if (!r)
		r = draw_stag_secret(&mem->window_key);
	if (r) {
		free(mem);
		return r;
	}
	siw_lock_init(&mem->lock);

	*out = mem;
	return 0;
}

void siw_mem_stag_table_free(struct siw_mem *mem)
{
	for (uint32_t i = 0; i < mem->n_chunks; i++)
		free(atomic_load_explicit(&mem->chunks[i], memory_order_relaxed));
	siw_lock_destroy(&mem->lock);
	free(mem);
}

static void push_free_index(struct siw_mem *mem, uint32_t index)
{
	stag_entry_at(mem, index)->next = NONE;
	if (mem->n_free++ == 0)
		mem->free_first = index;
	else
		stag_entry_at(mem, mem->free_last)->next = index;
	mem->free_last = index;
}

/*
 * Adds a chunk to the STag table. If there is no memory, or the table has its maximum size, the
 * table is unchanged.
 */
static void stag_table_grow(struct siw_mem *mem)
{
	struct siw_stag_entry *chunk;
	uint32_t i, base = mem->n_chunks * CHUNK;

	if (mem->n_chunks == CHUNKS)
		return;
	if (posix_memalign((void **)&chunk, 64, CHUNK * sizeof(*chunk)))
		return;
	memset(chunk, 0, CHUNK * sizeof(*chunk));
	/* Pairs with the load in stag_entry_at(): the chunk is zeroed before it can be found. */
	atomic_store_explicit(&mem->chunks[mem->n_chunks++], chunk, memory_order_release);
	for (i = 0; i < CHUNK; i++)
		push_free_index(mem, base + i);
}

static uint32_t pop_free_index(struct siw_mem *mem)
{
	uint32_t index;

	if (mem->n_free <= MIN_FREE_INDEXES)
		stag_table_grow(mem);
	if (!mem->n_free)
		return NONE;
	index = mem->free_first;
	mem->free_first = stag_entry_at(mem, index)->next;
	mem->n_free--;
	return index;
}

static uint32_t generation_of_stag_word(uint64_t word)
{
	return (uint32_t)(word >> GEN_SHIFT) & GEN_MASK;
}

/* Returns the STag for the turn-th use of the entry with this index, and the STag's generation. */
static uint32_t stag_encode(const struct siw_mem *mem, bool window, uint32_t index, uint32_t turn,
			    uint32_t *gen)
{
	uint32_t gens = 1u << (window ? WINDOW_GEN_BITS : REGION_GEN_BITS);

	turn &= gens - 1;
	if (window) {
		*gen = GEN_OF_WINDOW | turn << 8;
		return WINDOW |
		       permute_stag_bits(&mem->window_key, index * gens + turn, WINDOW_BITS) << 8;
	}
	*gen = turn;
	return permute_stag_bits(&mem->key, index * gens + turn, REGION_BITS);
}

/* Returns the index and the generation that this STag encodes. */
static inline uint32_t stag_decode(const struct siw_mem *mem, uint32_t stag, uint32_t *gen)
{
	uint32_t plain;

	if (stag & WINDOW) {
		plain = invert_stag_permutation(&mem->window_key, (stag & ~WINDOW) >> 8,
						WINDOW_BITS);
		*gen = GEN_OF_WINDOW | (plain & ((1u << WINDOW_GEN_BITS) - 1)) << 8 |
		       (stag & GEN_OCTET);
		return plain >> WINDOW_GEN_BITS;
	}
	plain = invert_stag_permutation(&mem->key, stag, REGION_BITS);
	*gen = plain & ((1u << REGION_GEN_BITS) - 1);
	return plain >> REGION_GEN_BITS;
}

/*
 * Allocates a free entry of the table and assigns a new STag to it, which is not valid yet. Returns
 * NULL if there is no free entry.
 */
static struct siw_stag_entry *stag_alloc_entry(struct siw_mem *mem, bool window, uint32_t *stag)
{
	struct siw_stag_entry *e;
	uint32_t index, gen;
	uint64_t word;

	siw_lock(&mem->lock);
	index = pop_free_index(mem);
	siw_unlock(&mem->lock);
	if (index == NONE)
		return NULL;
	e = stag_entry_at(mem, index);
	word = atomic_load(&e->word);
	*stag = stag_encode(mem, window, index, (uint32_t)(word >> TURN_SHIFT), &gen);
	if (!*stag) { /* 0 means "no STag", so this value of turn is skipped */
		word = atomic_fetch_add(&e->word, TURN_ONE) + TURN_ONE;
		*stag = stag_encode(mem, window, index, (uint32_t)(word >> TURN_SHIFT), &gen);
	}
	/*
	 * The reference count may be above 0 temporarily, because of look-ups of invalid STags; so
	 * add instead of storing.
	 */
	atomic_fetch_add(&e->word, ((uint64_t)gen - generation_of_stag_word(word)) << GEN_SHIFT);
	return e;
}

static void fill_stag_entry(struct siw_stag_entry *e, const struct siw_mem_region *region)
{
	store_field(e, addr, region->addr);
	store_field(e, length, region->length);
	store_field(e, to_base, region->to_base);
	store_field(e, sgl, region->sgl);
	store_field(e, nsge, region->nsge);
	store_field(e, stream, region->stream);
	store_field(e, rights, region->rights);
	store_field(e, pd, region->pd);
}

int siw_mem_stag_alloc(struct siw_mem *mem, const struct siw_mem_region *region, uint32_t *stag)
{
	struct siw_stag_entry *e = stag_alloc_entry(mem, false, stag);

	if (!e)
		return -ENOMEM;
	fill_stag_entry(e, region);
	atomic_fetch_add_explicit(&e->word, LIVE, memory_order_release);
	return 0;
}

int siw_mem_stag_reserve(struct siw_mem *mem, bool window, uint32_t *stag)
{
	struct siw_stag_entry *e = stag_alloc_entry(mem, window, stag);

	if (!e)
		return -ENOMEM;
	atomic_fetch_add(&e->word, INVALID);
	return 0;
}

static inline struct siw_stag_entry *stag_find(struct siw_mem *mem, uint32_t stag, uint32_t *gen)
{
	return stag_entry_at(mem, stag_decode(mem, stag, gen));
}

static bool stag_word_valid(uint64_t word, uint32_t gen)
{
	return word & LIVE && generation_of_stag_word(word) == gen;
}

bool siw_mem_is_stag_valid(struct siw_mem *mem, uint32_t stag)
{
	uint32_t gen;
	struct siw_stag_entry *e = stag_find(mem, stag, &gen);

	return e && stag_word_valid(atomic_load(&e->word), gen);
}

/*
 * Waits for look-ups that acquired a reference before the STag became invalid. They may still write
 * to the memory (RFC5041-8.3.1-07).
 */
static void await_release_of_stag_references(struct siw_stag_entry *e)
{
	while (atomic_load(&e->word) & REFS)
		siw_yield();
}

int siw_mem_stag_free(struct siw_mem *mem, uint32_t stag)
{
	uint32_t gen;
	struct siw_stag_entry *e = stag_find(mem, stag, &gen);
	uint64_t word;

	if (!e)
		return -ENOENT;
	word = atomic_load(&e->word);
	do {
		if (!(word & (LIVE | INVALID)) || generation_of_stag_word(word) != gen)
			return -ENOENT;
	} while (!atomic_compare_exchange_weak(&e->word, &word, word & ~(LIVE | INVALID)));
	await_release_of_stag_references(e);
	atomic_fetch_add(&e->word, TURN_ONE);
	siw_lock(&mem->lock);
	push_free_index(mem, stag_decode(mem, stag, &gen));
	siw_unlock(&mem->lock);
	return 0;
}

int siw_mem_stag_set_rights(struct siw_mem *mem, uint32_t stag, uint32_t rights)
{
	uint32_t gen;
	struct siw_stag_entry *e = stag_find(mem, stag, &gen);

	if (!e || !stag_word_valid(atomic_load(&e->word), gen))
		return -ENOENT;
	store_field(e, rights, rights);
	/*
	 * Look-ups that add their reference after this addition see the new rights;
	 * await_release_of_stag_references() waits for earlier look-ups.
	 */
	atomic_fetch_add(&e->word, 0);
	await_release_of_stag_references(e);
	return 0;
}

int siw_mem_stag_bind(struct siw_mem *mem, uint32_t stag, const struct siw_mem_region *region)
{
	uint32_t gen, owners = stag & WINDOW ? GEN_OCTET : 0;
	struct siw_stag_entry *e = stag_find(mem, stag, &gen);
	uint64_t word = e ? atomic_load(&e->word) : 0;

	if (!(word & (LIVE | INVALID)) || (generation_of_stag_word(word) ^ gen) & ~owners)
		return -ENOENT;
	if (word & LIVE)
		return -EBUSY;
	/*
	 * Look-ups that acquired a reference while the STag was valid may still read the fields.
	 * Later look-ups find the STag invalid and read no fields.
	 */
	await_release_of_stag_references(e);
	fill_stag_entry(e, region);
	word = atomic_load(&e->word);
	while (!atomic_compare_exchange_weak(
		&e->word, &word,
		word - INVALID + LIVE +
			(((uint64_t)gen - generation_of_stag_word(word)) << GEN_SHIFT)))
		;
	return 0;
}

static void stag_entry_release(struct siw_stag_entry *e)
{
	/*
	 * Pairs with the load in await_release_of_stag_references: all writes to the memory are
	 * completed before the count is decremented.
	 */
	atomic_fetch_sub_explicit(&e->word, 1, memory_order_release);
}

/* ---- invalidation by the peer (RFC 5040 section 5.3) ----------------------------------------- */

/*
 * Returns the entry of the STag, with a reference held, if the peer of this stream may invalidate
 * it; otherwise NULL.
 */
static struct siw_stag_entry *find_stag_that_peer_may_invalidate(struct siw_mem *mem, uint32_t stag,
								 const void *stream, uint32_t *gen)
{
	struct siw_stag_entry *e = stag_find(mem, stag, gen);

	if (!e)
		return NULL;
	if (stag_word_valid(atomic_fetch_add(&e->word, 1), *gen) &&
	    load_field(e, stream) == stream && load_field(e, rights) & SIW_MEM_REMOTE_INVALIDATE)
		return e;
	stag_entry_release(e);
	return NULL;
}

bool siw_mem_peer_may_invalidate_stag(struct siw_mem *mem, uint32_t stag, const void *stream)
{
	uint32_t gen;
	struct siw_stag_entry *e = find_stag_that_peer_may_invalidate(mem, stag, stream, &gen);

	if (e)
		stag_entry_release(e);
	return e;
}

int siw_mem_stag_invalidate(struct siw_mem *mem, uint32_t stag, const void *stream)
{
	uint32_t gen;
	struct siw_stag_entry *e = find_stag_that_peer_may_invalidate(mem, stag, stream, &gen);
	uint64_t word;
	bool done;

	if (!e)
		return -EACCES;
	word = atomic_load(&e->word);
	do
		done = stag_word_valid(word,
				       gen); /* false: the owner freed or invalidated the STag */
	while (done && !atomic_compare_exchange_weak(&e->word, &word, word - LIVE + INVALID));
	stag_entry_release(e);
	if (!done)
		return -EACCES;
	await_release_of_stag_references(e);
	return 0;
}

/* ---- access ---------------------------------------------------------------------------------- */

static int refuse_stag_access(struct siw_wire_err *err, uint8_t layer, uint8_t type, uint8_t code)
{
	*err = (struct siw_wire_err){ layer, type, code };
	return -EACCES;
}

static int refuse_tagged_access(struct siw_wire_err *err, uint8_t code)
{
	return refuse_stag_access(err, SIW_LAYER_DDP, SIW_DDP_TAGGED_BUFFER, code);
}

/*
 * Makes the checks of RFC5041-7.1-06 except the first. Access rights are checked by RDMAP (RFC 5040
 * figure 9).
 */
static int stag_check_access(struct siw_stag_entry *e, uint32_t pd, const void *stream,
			     uint32_t right, uint64_t to, uint64_t len, struct siw_wire_err *err)
{
	const void *owner = load_field(e, stream);
	uint64_t base = load_field(e, to_base);

	/* RFC5041-8.2-01, -02: the STag belongs either to a stream or to a protection domain. */
	if (owner ? owner != stream : load_field(e, pd) != pd)
		return refuse_tagged_access(err, SIW_DDP_STAG_NOT_OF_STREAM);
	if ((load_field(e, rights) & right) != right)
		return refuse_stag_access(err, SIW_LAYER_RDMAP, SIW_RDMAP_REMOTE_PROTECTION,
					  SIW_RDMAP_ACCESS);
	if (to + len < to)
		return refuse_tagged_access(err, SIW_DDP_TO_WRAP);
	if (to < base || to - base > load_field(e, length) ||
	    len > load_field(e, length) - (to - base))
		return refuse_tagged_access(err, SIW_DDP_BOUNDS);
	return 0;
}

int siw_mem_stag_acquire(struct siw_mem *mem, uint32_t stag, uint32_t pd, const void *stream,
			 uint32_t right, uint64_t to, uint64_t len, struct iovec *iov, int max,
			 struct siw_wire_err *err)
{
	uint32_t gen;
	struct siw_stag_entry *e;
	const struct siw_sge *sgl;
	int n;

	if (!len)
		return 0; /* RFC5041-5.2-10 */
	e = stag_find(mem, stag, &gen);
	if (!e)
		return refuse_tagged_access(err, SIW_DDP_INVALID_STAG);
	if (!stag_word_valid(atomic_fetch_add(&e->word, 1), gen)) {
		stag_entry_release(e);
		return refuse_tagged_access(err, SIW_DDP_INVALID_STAG);
	}
	n = stag_check_access(e, pd, stream, right, to, len, err);
	if (n < 0) {
		stag_entry_release(e);
		return n;
	}
	to -= load_field(e, to_base);
	sgl = load_field(e, sgl);
	if (!sgl || !max) {
		if (max)
			iov[0] = (struct iovec){ load_field(e, addr) + to, len };
		return 1;
	}
	n = siw_mem_sgl_resolve(mem, sgl, load_field(e, nsge), false, pd, true, to, len, iov, max);
	if (n < 0) { /* a region in the list was freed while the STag was valid */
		stag_entry_release(e);
		return refuse_stag_access(err, SIW_LAYER_DDP, SIW_DDP_LOCAL_CATASTROPHIC, 0);
	}
	return n;
}

void siw_mem_stag_release(struct siw_mem *mem, uint32_t stag)
{
	uint32_t gen;

	stag_entry_release(stag_find(mem, stag, &gen));
}

/* ---- local scatter/gather elements ----------------------------------------------------------- */

/*
 * Returns the address of the octets of sge, or NULL if its key does not allow the access to all of
 * them.
 */
static uint8_t *resolve_local_sge(struct siw_mem *mem, const struct siw_sge *sge, uint32_t pd,
				  uint32_t right)
{
	uint32_t gen;
	struct siw_stag_entry *e = stag_find(mem, sge->lkey, &gen);
	uint64_t word, start, length;
	uint8_t *addr;
	bool ok;

	if (!e)
		return NULL;
	word = atomic_load_explicit(&e->word, memory_order_acquire);
	addr = load_field(e, addr);
	start = load_field(e, to_base);
	length = load_field(e, length);
	ok = stag_word_valid(word, gen) && load_field(e, pd) == pd &&
	     load_field(e, rights) & right && sge->addr >= start && sge->addr - start <= length &&
	     sge->length <= length - (sge->addr - start);
	/*
	 * If the region was freed meanwhile, the fields that were read may be those of another
	 * region.
	 */
	ok = ok && stag_word_valid(atomic_load_explicit(&e->word, memory_order_relaxed), gen);
	return ok ? addr + (sge->addr - start) : NULL;
}

int siw_mem_sgl_resolve(struct siw_mem *mem, const struct siw_sge *sgl, int nsge, bool internal,
			uint32_t pd, bool write, uint64_t offset, uint64_t len, struct iovec *iov,
			int max)
{
	uint32_t right = write ? SIW_MEM_LOCAL_WRITE : SIW_MEM_LOCAL_READ;
	int i, n = 0;

	for (i = 0; i < nsge && len; i++) {
		uint8_t *addr = (uint8_t *)(uintptr_t)sgl[i].addr;
		uint64_t part;

		if (offset >= sgl[i].length) {
			offset -= sgl[i].length;
			continue;
		}
		if (!internal) {
			addr = resolve_local_sge(mem, &sgl[i], pd, right);
			if (!addr)
				return -EACCES;
		}
		if (n == max)
			return -EMSGSIZE;
		part = sgl[i].length - offset;
		if (part > len)
			part = len;
		iov[n].iov_base = addr + offset;
		iov[n++].iov_len = part;
		len -= part;
		offset = 0;
	}
	return len ? -EMSGSIZE : n;
}
