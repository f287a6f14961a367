/*
 * route.h: which implementation serves an operator, and how often it did.
 *
 * Every operator that the adapter registers owns a slot. Its kernel reads the slot's chosen route
 * with one atomic load; setting a route is one atomic store and safe while other threads run.
 * Calls are counted per thread without atomics on a shared line and summed when somebody asks, so
 * that counting costs about a nanosecond and is exact. Must not know what an operator does.
 */
#ifndef FL_ROUTE_H
#define FL_ROUTE_H

#include "fl/status.h"
#include "fl/types.h"

FL_EXTERN_C_BEGIN

/* kind, word in reports and rules files */
#define FL_ROUTE_LIST(X)                                              \
    X(NATIVE, "native")     /* The twin's kernel, through shadows. */ \
    X(VIEW, "view")         /* Metadata only: the result aliases. */  \
    X(FAST, "fast")         /* A kernel of our own table. */          \
    X(FLAGGEMS, "flaggems") /* A Triton kernel. */                    \
    X(VENDOR, "vendor")     /* A vendor's operator library. */        \
    X(CPU, "cpu")           /* A copy to the host and back. */        \
    X(OWN, "own")           /* The adapter's own code: empty, copy_, ... */

typedef enum fl_route_kind {
#define FL_ROUTE_ENUM(kind, word) FL_ROUTE_##kind,
    FL_ROUTE_LIST(FL_ROUTE_ENUM)
#undef FL_ROUTE_ENUM
        FL_ROUTE_COUNT
} fl_route_kind;

FL_API const char *fl_route_word(fl_route_kind kind);
/* FL_NOT_FOUND lists the known words. */
FL_API fl_status fl_route_from_word(const char *word, fl_route_kind *out_kind);

/* One way to serve one operator. `implementation` belongs to whoever made the route. */
typedef struct fl_route {
    fl_route_kind kind;
    const void *implementation;
} fl_route;

/* One operator. Created once, lives as long as the process; the address never changes. */
typedef struct fl_slot {
    const char *name;                       /* "aten::add.Tensor"; owned by the slot. */
    uint32_t index;                         /* Dense, from 0. */
    const fl_route *chosen;                 /* Access with fl_slot_route and fl_slot_choose only. */
    const fl_route *initial;                /* What reset goes back to. */
    const fl_route *routes[FL_ROUTE_COUNT]; /* Possible ones by kind, NULL where there is none. */
} fl_slot;

/* The slot of this name, made if it is new. Thread-safe. */
FL_API fl_status fl_slot_get(const char *name, fl_slot **out_slot);
/* NULL if there is none. */
FL_API fl_slot *fl_slot_find(const char *name);
FL_API uint32_t fl_slot_count(void);
FL_API fl_slot *fl_slot_at(uint32_t index);

/* Offer a route. The first one offered is chosen until somebody says otherwise; a second one of the
 * same kind is FL_WRONG_STATE. */
FL_API fl_status fl_slot_offer(fl_slot *slot, const fl_route *route);

/* Choose among the offered routes; FL_NOT_SUPPORTED names the operator and those it has. */
FL_API fl_status fl_slot_choose(fl_slot *slot, fl_route_kind kind);
FL_API void fl_slot_reset(fl_slot *slot);

static inline const fl_route *fl_slot_route(const fl_slot *slot) {
    return __atomic_load_n(&slot->chosen, __ATOMIC_ACQUIRE);
}

/* --- counters ------------------------------------------------------------------------------- */

/* The calling thread's counters; the pointer stays valid until the thread ends, so hot paths keep
 * it. Never NULL: on exhaustion of memory a shared spare is handed out and counts are lost. */
typedef struct fl_tally {
    uint64_t *calls; /* [slot index * FL_ROUTE_COUNT + kind], grown under a lock */
    uint32_t slots;  /* how many slots `calls` has room for */
} fl_tally;

FL_API fl_tally *fl_tally_self(void);
/* false on exhaustion of memory: then the call is not counted. */
FL_API bool fl_tally_grow(fl_tally *tally, uint32_t slot_index);

/* Count one call. Only the owning thread writes; readers may see it a moment late. */
static inline void fl_tally_count(fl_tally *tally, const fl_slot *slot, fl_route_kind kind) {
    if (__builtin_expect(slot->index >= tally->slots, 0) && !fl_tally_grow(tally, slot->index)) {
        return;
    }
    uint64_t *cell = &tally->calls[(size_t)slot->index * FL_ROUTE_COUNT + (size_t)kind];
    __atomic_store_n(cell, __atomic_load_n(cell, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

typedef struct fl_route_counts {
    uint64_t calls[FL_ROUTE_COUNT];
    uint64_t cpu_bytes; /* Copied to the host and back for the `cpu` route. */
    uint64_t cpu_ns;    /* Spent in the `cpu` route, copies included. */
} fl_route_counts;

/* Add to what the `cpu` route moved and took; slow path, any thread. */
FL_API void fl_slot_add_cpu(fl_slot *slot, uint64_t bytes, uint64_t ns);

/* Sums over all threads, ended ones included. */
FL_API void fl_slot_counts(const fl_slot *slot, fl_route_counts *out_counts);
FL_API void fl_route_counts_reset(void);

/* --- strict mode ----------------------------------------------------------------------------- */

/* While strict, the adapter raises instead of taking the `cpu` route. Process-wide. */
FL_API void fl_route_set_strict(bool strict);
FL_API bool fl_route_is_strict(void);

FL_EXTERN_C_END
#endif
