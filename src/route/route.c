/*
 * route.c: the slot of each operator, its chosen route, and exact counters.
 *
 * Slots live in chunks that never move; a map finds them by exact name. Counters are one array a
 * thread, written by that thread alone; sums are taken under a lock and include what ended threads
 * left. Relies on base only. Does not know what an operator does.
 */
#include "fl/route.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"
#include "fl/debug.h"

enum {
    CHUNK_SIZE = 256,
    CHUNK_MAX = 256,
    SLOT_MAX = CHUNK_SIZE * CHUNK_MAX,
    MAP_FIRST_SIZE = 4096, /* A power of two; PyTorch has some 3,000 operators with kernels. */
};

typedef struct slot_record {
    fl_slot slot; /* First, so that a slot's address is its record's. */
    uint64_t hash;
    uint64_t cpu_bytes, cpu_ns;           /* Atomic. */
    uint64_t cpu_bytes_base, cpu_ns_base; /* What they were at the last reset; counter lock. */
    uint64_t calls_base[FL_ROUTE_COUNT];  /* Likewise. */
} slot_record;

/* --- words ----------------------------------------------------------------------------------- */

static const char *const words[FL_ROUTE_COUNT] = {
#define ROUTE_WORD(kind, word) [FL_ROUTE_##kind] = word,
    FL_ROUTE_LIST(ROUTE_WORD)
#undef ROUTE_WORD
};

const char *fl_route_word(fl_route_kind kind) {
    return (unsigned)kind < FL_ROUTE_COUNT ? words[kind] : "unknown";
}

/* "a, b, c" of the kinds whose bit is set; the longest result has some 50 bytes. */
static void list_words(unsigned kinds, char *out, size_t size) {
    size_t used = 0;
    out[0] = '\0';
    for (int kind = 0; kind < FL_ROUTE_COUNT; kind++) {
        size_t length = strlen(words[kind]);
        if ((kinds >> kind & 1u) && used + length + 3 < size) {
            if (used) {
                memcpy(out + used, ", ", 2);
                used += 2;
            }
            memcpy(out + used, words[kind], length + 1);
            used += length;
        }
    }
}

fl_status fl_route_from_word(const char *word, fl_route_kind *out_kind) {
    for (int kind = 0; kind < FL_ROUTE_COUNT; kind++) {
        if (strcmp(word, words[kind]) == 0) {
            *out_kind = (fl_route_kind)kind;
            return FL_OK;
        }
    }
    char known[128];
    list_words((1u << FL_ROUTE_COUNT) - 1, known, sizeof(known));
    return fl_fail(FL_NOT_FOUND, "\"%s\" is no route; known are: %s", word, known);
}

/* --- slots ----------------------------------------------------------------------------------- */

static fl__mutex slot_lock = FL__MUTEX_INIT; /* Guards the map and all making of slots. */
static slot_record *chunks[CHUNK_MAX];       /* Stored before slot_count lets readers see them. */
static uint32_t slot_count;                  /* Atomic. */
static slot_record **map;                    /* Open addressing, at most half full. */
static size_t map_size;

static fl__mutex counter_lock = FL__MUTEX_INIT; /* Guards the tallies; see below. */

/* No foreign code runs under the two locks, so a fork can wait for both; the child finds them free
 * and may go on to count. */
static void before_fork(void) {
    fl__lock(&slot_lock);
    fl__lock(&counter_lock);
}

static void after_fork(void) {
    fl__unlock(&counter_lock);
    fl__unlock(&slot_lock);
}

static void register_fork_handlers(void) {
    (void)pthread_atfork(before_fork, after_fork, after_fork);
}

/* FNV-1a. */
static uint64_t hash_name(const char *name) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name; name++) {
        hash = (hash ^ (uint8_t)*name) * UINT64_C(1099511628211);
    }
    return hash;
}

/* Under the lock: the place of this name, or the free place where it belongs. */
static slot_record **probe(slot_record **table, size_t size, uint64_t hash, const char *name) {
    size_t place = (size_t)hash & (size - 1);
    while (table[place] &&
           (table[place]->hash != hash || strcmp(table[place]->slot.name, name) != 0)) {
        place = (place + 1) & (size - 1);
    }
    return &table[place];
}

/* Under the lock: room for one more name. */
static fl_status reserve_map(void) {
    if (map && (size_t)slot_count + 1 <= map_size / 2) {
        return FL_OK;
    }
    size_t size = map ? map_size * 2 : MAP_FIRST_SIZE;
    slot_record **table = calloc(size, sizeof(slot_record *));
    if (!table) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory for the names of %u operators",
                       slot_count + 1);
    }
    for (size_t i = 0; i < map_size; i++) {
        if (map[i]) {
            *probe(table, size, map[i]->hash, map[i]->slot.name) = map[i];
        }
    }
    free(map);
    map = table;
    map_size = size;
    return FL_OK;
}

/* Under the lock. */
static fl_status make_slot(const char *name, uint64_t hash, fl_slot **out_slot) {
    uint32_t index = slot_count;
    if (index == SLOT_MAX) {
        return fl_fail(FL_OUT_OF_RANGE, "operator %s: there are %d slots already", name, SLOT_MAX);
    }
    FL_TRY(reserve_map());
    if (!chunks[index / CHUNK_SIZE]) {
        chunks[index / CHUNK_SIZE] = calloc(CHUNK_SIZE, sizeof(slot_record));
    }
    char *own_name = strdup(name);
    if (!chunks[index / CHUNK_SIZE] || !own_name) {
        free(own_name);
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory for the slot of %s", name);
    }
    slot_record *record = &chunks[index / CHUNK_SIZE][index % CHUNK_SIZE];
    record->slot.name = own_name;
    record->slot.index = index;
    record->hash = hash;
    *probe(map, map_size, hash, name) = record;
    __atomic_store_n(&slot_count, index + 1, __ATOMIC_RELEASE);
    *out_slot = &record->slot;
    return FL_OK;
}

fl_status fl_slot_get(const char *name, fl_slot **out_slot) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, register_fork_handlers);
    if (!name || !name[0]) {
        return fl_fail(FL_INVALID_ARGUMENT, "fl_slot_get: an operator needs a name");
    }
    fl_status status = FL_OK;
    uint64_t hash = hash_name(name);
    fl__lock(&slot_lock);
    slot_record *record = map ? *probe(map, map_size, hash, name) : NULL;
    if (record) {
        *out_slot = &record->slot;
    } else {
        status = make_slot(name, hash, out_slot);
    }
    fl__unlock(&slot_lock);
    return status;
}

fl_slot *fl_slot_find(const char *name) {
    fl__lock(&slot_lock);
    slot_record *record = map ? *probe(map, map_size, hash_name(name), name) : NULL;
    fl__unlock(&slot_lock);
    return record ? &record->slot : NULL;
}

uint32_t fl_slot_count(void) {
    return __atomic_load_n(&slot_count, __ATOMIC_ACQUIRE);
}

static slot_record *record_at(uint32_t index) {
    return &chunks[index / CHUNK_SIZE][index % CHUNK_SIZE];
}

fl_slot *fl_slot_at(uint32_t index) {
    return index < fl_slot_count() ? &record_at(index)->slot : NULL;
}

/* --- routes ---------------------------------------------------------------------------------- */

fl_status fl_slot_offer(fl_slot *slot, const fl_route *route) {
    if ((unsigned)route->kind >= FL_ROUTE_COUNT) {
        return fl_fail(FL_INVALID_ARGUMENT, "%s: a route of the unknown kind %d is offered",
                       slot->name, (int)route->kind);
    }
    fl_status status = FL_OK;
    fl__lock(&slot_lock);
    if (slot->routes[route->kind]) {
        status = fl_fail(FL_WRONG_STATE, "%s: it has a route %s already", slot->name,
                         fl_route_word(route->kind));
    } else {
        __atomic_store_n(&slot->routes[route->kind], route, __ATOMIC_RELEASE);
        if (!slot->initial) {
            __atomic_store_n(&slot->initial, route, __ATOMIC_RELEASE);
            __atomic_store_n(&slot->chosen, route, __ATOMIC_RELEASE);
        }
    }
    fl__unlock(&slot_lock);
    return status;
}

fl_status fl_slot_choose(fl_slot *slot, fl_route_kind kind) {
    const fl_route *route = (unsigned)kind < FL_ROUTE_COUNT
                                ? __atomic_load_n(&slot->routes[kind], __ATOMIC_ACQUIRE)
                                : NULL;
    if (!route) {
        unsigned kinds = 0;
        for (int i = 0; i < FL_ROUTE_COUNT; i++) {
            kinds |= (__atomic_load_n(&slot->routes[i], __ATOMIC_ACQUIRE) ? 1u : 0u) << i;
        }
        char known[128];
        list_words(kinds, known, sizeof(known));
        return fl_fail(FL_NOT_SUPPORTED, "%s has no route %s; it has: %s", slot->name,
                       fl_route_word(kind), kinds ? known : "none");
    }
    __atomic_store_n(&slot->chosen, route, __ATOMIC_RELEASE);
    fl_trace(FL_TRACE_ROUTE, "%s is served by %s", slot->name, fl_route_word(kind));
    return FL_OK;
}

void fl_slot_reset(fl_slot *slot) {
    __atomic_store_n(&slot->chosen, __atomic_load_n(&slot->initial, __ATOMIC_ACQUIRE),
                     __ATOMIC_RELEASE);
}

/* --- counters -------------------------------------------------------------------------------- */

/* One thread's counters. The owner stores to the cells without a lock; it replaces the array under
 * the lock, which readers hold while they sum. */
typedef struct tally_record {
    fl_tally tally; /* First, so that a tally's address is its record's. */
    fl__list link;  /* In `tallies`. */
} tally_record;

static fl__list tallies = {&tallies, &tallies};
static fl_tally ended;             /* Sums of threads that ended. */
static fl_tally spare = {NULL, 0}; /* Handed out when there is no memory; never grows. */
static pthread_key_t tally_key;    /* Its destructor folds a thread's tally into `ended`. */
static pthread_once_t tally_once = PTHREAD_ONCE_INIT;
static bool has_tally_key;

static FL_THREAD_LOCAL_HOT fl_tally *tally_self;

/* Under the lock. Room for slots up to `index`, existing counts kept. */
static bool grow(fl_tally *tally, uint32_t index) {
    if (index < tally->slots) {
        return true;
    }
    uint32_t count = tally->slots ? tally->slots : 1024;
    while (count <= index) {
        count *= 2;
    }
    uint64_t *cells = calloc((size_t)count * FL_ROUTE_COUNT, sizeof(*cells));
    if (!cells) {
        return false;
    }
    for (size_t i = 0; i < (size_t)tally->slots * FL_ROUTE_COUNT; i++) {
        cells[i] = __atomic_load_n(&tally->calls[i], __ATOMIC_RELAXED);
    }
    free(tally->calls);
    tally->calls = cells;
    tally->slots = count;
    return true;
}

bool fl_tally_grow(fl_tally *tally, uint32_t slot_index) {
    if (tally == &spare || slot_index >= SLOT_MAX) {
        return false;
    }
    fl__lock(&counter_lock);
    bool has_room = grow(tally, slot_index);
    fl__unlock(&counter_lock);
    return has_room;
}

/* The destructor of the thread's key; counts are lost only if `ended` cannot grow. */
static void end_tally(void *argument) {
    tally_record *record = argument;
    tally_self = NULL;
    fl__lock(&counter_lock);
    fl__list_remove(&record->link);
    if (record->tally.slots && grow(&ended, record->tally.slots - 1)) {
        for (size_t i = 0; i < (size_t)record->tally.slots * FL_ROUTE_COUNT; i++) {
            ended.calls[i] += record->tally.calls[i];
        }
    }
    fl__unlock(&counter_lock);
    free(record->tally.calls);
    free(record);
}

static void make_tally_key(void) {
    has_tally_key = pthread_key_create(&tally_key, end_tally) == 0;
}

fl_tally *fl_tally_self(void) {
    if (__builtin_expect(tally_self != NULL, 1)) {
        return tally_self;
    }
    (void)pthread_once(&tally_once, make_tally_key);
    tally_record *record = calloc(1, sizeof(*record));
    if (!record || !has_tally_key || pthread_setspecific(tally_key, record) != 0) {
        free(record);
        return &spare;
    }
    fl__lock(&counter_lock);
    fl__list_push_back(&tallies, &record->link);
    fl__unlock(&counter_lock);
    tally_self = &record->tally;
    return tally_self;
}

static void add_calls(const fl_tally *tally, uint32_t index, uint64_t sums[FL_ROUTE_COUNT]) {
    if (index < tally->slots) {
        const uint64_t *cells = &tally->calls[(size_t)index * FL_ROUTE_COUNT];
        for (int kind = 0; kind < FL_ROUTE_COUNT; kind++) {
            sums[kind] += __atomic_load_n(&cells[kind], __ATOMIC_RELAXED);
        }
    }
}

/* Under the lock: sums since the process began. */
static void sum_calls(uint32_t index, uint64_t sums[FL_ROUTE_COUNT]) {
    memset(sums, 0, FL_ROUTE_COUNT * sizeof(sums[0]));
    add_calls(&ended, index, sums);
    for (fl__list *node = tallies.next; node != &tallies; node = node->next) {
        add_calls(&FL__LIST_ENTRY(node, tally_record, link)->tally, index, sums);
    }
}

void fl_slot_add_cpu(fl_slot *slot, uint64_t bytes, uint64_t ns) {
    slot_record *record = record_at(slot->index);
    (void)__atomic_fetch_add(&record->cpu_bytes, bytes, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&record->cpu_ns, ns, __ATOMIC_RELAXED);
}

void fl_slot_counts(const fl_slot *slot, fl_route_counts *out_counts) {
    const slot_record *record = record_at(slot->index);
    fl__lock(&counter_lock);
    sum_calls(slot->index, out_counts->calls);
    for (int kind = 0; kind < FL_ROUTE_COUNT; kind++) {
        out_counts->calls[kind] -= record->calls_base[kind];
    }
    out_counts->cpu_bytes =
        __atomic_load_n(&record->cpu_bytes, __ATOMIC_RELAXED) - record->cpu_bytes_base;
    out_counts->cpu_ns = __atomic_load_n(&record->cpu_ns, __ATOMIC_RELAXED) - record->cpu_ns_base;
    fl__unlock(&counter_lock);
}

/* Nobody's cells are written: other threads may be counting. What was counted becomes the base that
 * later sums start from. */
void fl_route_counts_reset(void) {
    uint32_t count = fl_slot_count();
    fl__lock(&counter_lock);
    for (uint32_t index = 0; index < count; index++) {
        slot_record *record = record_at(index);
        sum_calls(index, record->calls_base);
        record->cpu_bytes_base = __atomic_load_n(&record->cpu_bytes, __ATOMIC_RELAXED);
        record->cpu_ns_base = __atomic_load_n(&record->cpu_ns, __ATOMIC_RELAXED);
    }
    fl__unlock(&counter_lock);
}

/* --- strict mode ----------------------------------------------------------------------------- */

/* Atomic; -1: what the option says, which is read when somebody first asks. */
static int strict_mode = -1;

void fl_route_set_strict(bool strict) {
    __atomic_store_n(&strict_mode, strict, __ATOMIC_RELAXED);
}

bool fl_route_is_strict(void) {
    int mode = __atomic_load_n(&strict_mode, __ATOMIC_RELAXED);
    return mode < 0 ? fl_option_bool(FL_OPT_STRICT) : mode != 0;
}
