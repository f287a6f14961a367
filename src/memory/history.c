/*
 * history.c: the last events of each device, for people and for replays.
 *
 * A ring that is filled under the cache's mutex and copied out before anybody is shown anything.
 * Knows what happened, not why.
 */
#include "memory/block.h"

#include <stdlib.h>

/* Length for new caches; guarded by the lock of fl__caches_each. */
static size_t standard_room;

const char *fl_memory_action_word(fl_memory_action action) {
    static const char *const words[] = {
#define WORD(name, word) word,
        FL_MEMORY_ACTION_LIST(WORD)
#undef WORD
    };
    return (unsigned)action < FL_MEMORY_ACTION_COUNT ? words[action] : "unknown";
}

void fl__history_add_slow(fl__cache *cache, fl_memory_action action, fl_stream stream,
                          uint64_t address, uint64_t size) {
    fl__history *history = &cache->history;
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    history->events[history->next] = (fl_memory_event){
        .action = action,
        .device = cache->device,
        .stream = stream,
        .address = address,
        .size = size,
        .time_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec,
    };
    history->next = history->next + 1 == history->room ? 0 : history->next + 1;
    if (history->used < history->room) {
        history->used++;
    }
}

/* Replace a cache's ring; on FL_OUT_OF_MEMORY it stays as it was. */
static fl_status set_room(fl__cache *cache, size_t room) {
    fl_memory_event *events = NULL;
    if (room) {
        events = calloc(room, sizeof(*events));
        if (!events) {
            return fl_fail(FL_OUT_OF_MEMORY, "no host memory for a history of %zu events", room);
        }
    }
    free(cache->history.events);
    cache->history = (fl__history){.events = events, .room = room};
    return FL_OK;
}

fl_status fl__history_init(fl__cache *cache) {
    return set_room(cache, standard_room);
}

typedef struct enabling {
    size_t room;
    fl_status status;
} enabling;

static void change_standard(void *user) {
    standard_room = ((enabling *)user)->room;
}

static void enable_one(fl__cache *cache, void *user) {
    enabling *wanted = user;
    fl_status status = set_room(cache, wanted->room);
    wanted->status = wanted->status ? wanted->status : status;
}

fl_status fl_memory_history_enable(size_t max_entries) {
    enabling wanted = {max_entries, FL_OK};
    fl__caches_each(change_standard, enable_one, &wanted);
    return wanted.status;
}

static fl_status copy_events(fl__cache *cache, fl_memory_event **out_events, size_t *out_count) {
    *out_events = NULL;
    fl__lock(&cache->mutex);
    const fl__history *history = &cache->history;
    size_t used = history->used;
    *out_count = used;
    if (used) {
        *out_events = malloc(used * sizeof(**out_events));
        size_t first = used == history->room ? history->next : 0;
        for (size_t i = 0; *out_events && i < used; i++) {
            (*out_events)[i] = history->events[(first + i) % history->room];
        }
    }
    fl__unlock(&cache->mutex);
    if (used && !*out_events) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory to show %zu events", used);
    }
    return FL_OK;
}

fl_status fl_memory_history(fl_device device,
                            void (*visit)(void *user, const fl_memory_event *event), void *user) {
    fl__cache *cache = NULL;
    if (device != -1) {
        FL_TRY(fl__cache_look(&device, &cache));
    }
    fl_device end = device == -1 ? fl__cache_top() : device + 1;
    for (fl_device each = device == -1 ? 0 : device; each < end; each++) {
        cache = fl__cache_peek(each);
        if (!cache) {
            continue;
        }
        fl_memory_event *events;
        size_t count;
        FL_TRY(copy_events(cache, &events, &count));
        for (size_t i = 0; i < count; i++) {
            visit(user, &events[i]);
        }
        free(events);
    }
    return FL_OK;
}
