/* test_route.c: slots, the choice of routes, exact counters. */
#include "fl/route.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fl/debug.h"
#include "harness.h"

static fl_slot *slot_of(const char *name) {
    fl_slot *slot = NULL;
    CHECK_OK(fl_slot_get(name, &slot));
    return slot;
}

TEST(route, words) {
    for (int i = 0; i < FL_ROUTE_COUNT; i++) {
        fl_route_kind kind = FL_ROUTE_COUNT;
        CHECK_OK(fl_route_from_word(fl_route_word((fl_route_kind)i), &kind));
        CHECK_INT(kind, i);
    }
    CHECK_STRING(fl_route_word(FL_ROUTE_COUNT), "unknown");
    fl_route_kind kind = FL_ROUTE_CPU;
    CHECK_STATUS(fl_route_from_word("nativ", &kind), FL_NOT_FOUND);
    CHECK_CONTAINS(fl_last_message(), "native, view, fast, flaggems, vendor, cpu, own");
    CHECK_STATUS(fl_route_from_word("", &kind), FL_NOT_FOUND);
    CHECK_INT(kind, FL_ROUTE_CPU);
}

TEST(route, slots_keep_address_name_and_number) {
    enum { COUNT = 20000 };
    static fl_slot *slots[COUNT];
    char name[64];
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof(name), "aten::op%d.overload", i);
        CHECK_POINTER(fl_slot_find(name), NULL);
        slots[i] = slot_of(name);
        CHECK_INT(slots[i]->index, i);
    }
    CHECK_INT(fl_slot_count(), COUNT);
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof(name), "aten::op%d.overload", i);
        CHECK_POINTER(slot_of(name), slots[i]);
        CHECK_POINTER(fl_slot_find(name), slots[i]);
        CHECK_POINTER(fl_slot_at((uint32_t)i), slots[i]);
        CHECK_STRING(slots[i]->name, name);
    }
    CHECK_POINTER(fl_slot_at(COUNT), NULL);
    CHECK_POINTER(fl_slot_find("aten::op"), NULL);
    fl_slot *none = NULL;
    CHECK_STATUS(fl_slot_get("", &none), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_slot_get(NULL, &none), FL_INVALID_ARGUMENT);
    CHECK_POINTER(none, NULL);
}

TEST(route, choice) {
    static const int marks[3];
    static const fl_route native = {FL_ROUTE_NATIVE, &marks[0]};
    static const fl_route cpu = {FL_ROUTE_CPU, &marks[1]};
    static const fl_route other_cpu = {FL_ROUTE_CPU, &marks[2]};
    static const fl_route bad = {FL_ROUTE_COUNT, &marks[2]};
    fl_slot *slot = slot_of("aten::add.Tensor");
    CHECK_POINTER(fl_slot_route(slot), NULL);
    CHECK_STATUS(fl_slot_choose(slot, FL_ROUTE_CPU), FL_NOT_SUPPORTED);
    CHECK_CONTAINS(fl_last_message(), "aten::add.Tensor has no route cpu; it has: none");
    CHECK_OK(fl_slot_offer(slot, &native));
    CHECK_POINTER(fl_slot_route(slot), &native);
    CHECK_OK(fl_slot_offer(slot, &cpu));
    CHECK_POINTER(fl_slot_route(slot), &native);
    CHECK_STATUS(fl_slot_offer(slot, &other_cpu), FL_WRONG_STATE);
    CHECK_CONTAINS(fl_last_message(), "cpu");
    CHECK_STATUS(fl_slot_offer(slot, &bad), FL_INVALID_ARGUMENT);

    CHECK_OK(fl_slot_choose(slot, FL_ROUTE_CPU));
    CHECK_POINTER(fl_slot_route(slot), &cpu);
    CHECK_STATUS(fl_slot_choose(slot, FL_ROUTE_FAST), FL_NOT_SUPPORTED);
    CHECK_CONTAINS(fl_last_message(), "it has: native, cpu");
    CHECK_STATUS(fl_slot_choose(slot, FL_ROUTE_COUNT), FL_NOT_SUPPORTED);
    CHECK_POINTER(fl_slot_route(slot), &cpu);
    fl_slot_reset(slot);
    CHECK_POINTER(fl_slot_route(slot), &native);
}

static void count(fl_slot *slot, fl_route_kind kind, int times) {
    for (int i = 0; i < times; i++) {
        fl_tally_count(fl_tally_self(), slot, kind);
    }
}

TEST(route, counts_by_kind_and_reset) {
    fl_slot *a = slot_of("a");
    fl_slot *b = slot_of("b");
    count(a, FL_ROUTE_NATIVE, 5);
    count(a, FL_ROUTE_CPU, 2);
    count(b, FL_ROUTE_VIEW, 1);
    fl_slot_add_cpu(a, 100, 7);
    fl_slot_add_cpu(a, 50, 3);
    fl_route_counts counts;
    fl_slot_counts(a, &counts);
    CHECK_UINT(counts.calls[FL_ROUTE_NATIVE], 5);
    CHECK_UINT(counts.calls[FL_ROUTE_CPU], 2);
    CHECK_UINT(counts.calls[FL_ROUTE_VIEW], 0);
    CHECK_UINT(counts.cpu_bytes, 150);
    CHECK_UINT(counts.cpu_ns, 10);
    fl_route_counts_reset();
    fl_slot_counts(a, &counts);
    for (int i = 0; i < FL_ROUTE_COUNT; i++) {
        CHECK_UINT(counts.calls[i], 0);
    }
    CHECK_UINT(counts.cpu_bytes, 0);
    count(a, FL_ROUTE_CPU, 3);
    fl_slot_counts(a, &counts);
    CHECK_UINT(counts.calls[FL_ROUTE_CPU], 3);
    fl_slot_counts(b, &counts);
    CHECK_UINT(counts.calls[FL_ROUTE_VIEW], 0);
}

TEST(route, counters_grow_with_the_slots) {
    fl_slot *first = slot_of("first");
    count(first, FL_ROUTE_FAST, 4);
    const fl_tally *self = fl_tally_self();
    char name[32];
    for (int i = 0; i < 9000; i++) {
        (void)snprintf(name, sizeof(name), "op%d", i);
        count(slot_of(name), FL_ROUTE_OWN, 1 + i % 3);
    }
    CHECK_POINTER(fl_tally_self(), self);
    fl_route_counts counts;
    for (int i = 0; i < 9000; i++) {
        (void)snprintf(name, sizeof(name), "op%d", i);
        fl_slot_counts(fl_slot_find(name), &counts);
        CHECK_UINT(counts.calls[FL_ROUTE_OWN], 1 + i % 3);
    }
    fl_slot_counts(first, &counts);
    CHECK_UINT(counts.calls[FL_ROUTE_FAST], 4);
}

/* --- threads --------------------------------------------------------------------------------- */

enum { THREADS = 8, SLOTS = 1500, CALLS = 40000 };

static void *count_in_thread(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    char name[32];
    for (int i = 0; i < CALLS; i++) {
        (void)snprintf(name, sizeof(name), "op%d", (int)(test_random(&seed) % SLOTS));
        fl_slot *slot = NULL;
        CHECK_OK(fl_slot_get(name, &slot));
        CHECK_STRING(slot->name, name);
        fl_tally_count(fl_tally_self(), slot, (fl_route_kind)(i % FL_ROUTE_COUNT));
    }
    return NULL;
}

static uint64_t total_calls(void) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < fl_slot_count(); i++) {
        fl_route_counts counts;
        fl_slot_counts(fl_slot_at(i), &counts);
        for (int kind = 0; kind < FL_ROUTE_COUNT; kind++) {
            sum += counts.calls[kind];
        }
    }
    return sum;
}

TEST_WITH_LIMIT(route, sums_are_exact_with_threads_that_come_and_go, 120) {
    for (int round = 0; round < 3; round++) {
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++) {
            CHECK_INT(pthread_create(&threads[i], NULL, count_in_thread,
                                     (void *)(i + 1 + (uintptr_t)round * 100)),
                      0);
        }
        /* Reading meanwhile must neither disturb nor go back. */
        uint64_t before = 0;
        for (int i = 0; i < 20; i++) {
            uint64_t now = total_calls();
            CHECK(now >= before && now <= (uint64_t)(round + 1) * THREADS * CALLS);
            before = now;
        }
        for (int i = 0; i < THREADS; i++) {
            CHECK_INT(pthread_join(threads[i], NULL), 0);
        }
        CHECK_UINT(total_calls(), (uint64_t)(round + 1) * THREADS * CALLS);
    }
    CHECK_INT(fl_slot_count(), SLOTS);
}

static int stop_resetting;
static uint64_t taken; /* Atomic: how many resets there were. */

/* A reset between the read and the reset itself would lose calls, so this counts one slot only and
 * resets while nobody else does. */
static void *reset_often(void *argument) {
    (void)argument;
    while (!__atomic_load_n(&stop_resetting, __ATOMIC_ACQUIRE)) {
        fl_route_counts_reset();
        __atomic_fetch_add(&taken, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

TEST(route, a_reset_loses_no_later_call) {
    fl_slot *slot = slot_of("x");
    pthread_t resetter;
    CHECK_INT(pthread_create(&resetter, NULL, reset_often, NULL), 0);
    while (!__atomic_load_n(&taken, __ATOMIC_ACQUIRE)) {
        (void)sched_yield(); /* On a busy machine the loop below may end before a thread begins. */
    }
    fl_route_counts counts;
    for (int i = 0; i < 200000; i++) {
        count(slot, FL_ROUTE_FAST, 1);
        fl_slot_counts(slot, &counts);
        CHECK(counts.calls[FL_ROUTE_FAST] <= (uint64_t)i + 1);
    }
    __atomic_store_n(&stop_resetting, 1, __ATOMIC_RELEASE);
    CHECK_INT(pthread_join(resetter, NULL), 0);
    CHECK(taken > 0);
    fl_route_counts_reset();
    count(slot, FL_ROUTE_FAST, 3);
    fl_slot_counts(slot, &counts);
    CHECK_UINT(counts.calls[FL_ROUTE_FAST], 3);
}

static const fl_route switch_a = {FL_ROUTE_NATIVE, &switch_a};
static const fl_route switch_b = {FL_ROUTE_CPU, &switch_b};

static void *switch_routes(void *argument) {
    fl_slot *slot = argument;
    for (int i = 0; i < 100000; i++) {
        (void)fl_slot_choose(slot, i % 2 ? FL_ROUTE_CPU : FL_ROUTE_NATIVE);
        if (i % 7 == 0) {
            fl_slot_reset(slot);
        }
    }
    return NULL;
}

TEST(route, choosing_is_safe_while_others_run) {
    fl_slot *slot = slot_of("switched");
    CHECK_OK(fl_slot_offer(slot, &switch_a));
    CHECK_OK(fl_slot_offer(slot, &switch_b));
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        CHECK_INT(pthread_create(&threads[i], NULL, switch_routes, slot), 0);
    }
    for (int i = 0; i < 300000; i++) {
        const fl_route *route = fl_slot_route(slot);
        CHECK(route == &switch_a || route == &switch_b);
        CHECK_POINTER(route->implementation, route);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_INT(pthread_join(threads[i], NULL), 0);
    }
}

/* A thread-local destructor of somebody else may run after ours and count once more. */
static pthread_key_t late_key;

static void count_late(void *argument) {
    count(argument, FL_ROUTE_OWN, 1);
}

static void *leave_late(void *argument) {
    (void)fl_tally_self();
    CHECK_INT(pthread_setspecific(late_key, argument), 0);
    return NULL;
}

TEST(route, calls_from_a_late_destructor_count) {
    fl_slot *slot = slot_of("late");
    (void)fl_tally_self(); /* Our key is made first, so its destructor runs first. */
    CHECK_INT(pthread_key_create(&late_key, count_late), 0);
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, leave_late, slot), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    fl_route_counts counts;
    fl_slot_counts(slot, &counts);
    CHECK_UINT(counts.calls[FL_ROUTE_OWN], 1);
}

static void count_in_child(void *argument) {
    fl_route_counts counts;
    fl_slot *slot = argument;
    count(slot, FL_ROUTE_CPU, 2);
    count(slot_of("made in the child"), FL_ROUTE_CPU, 2);
    fl_slot_counts(slot, &counts);
    _exit(counts.calls[FL_ROUTE_CPU] == 3 ? 0 : 1);
}

static bool stop_counting;

/* Counts until it is told to stop, so that each fork meets it at work. */
static void *count_meanwhile(void *argument) {
    while (!__atomic_load_n(&stop_counting, __ATOMIC_ACQUIRE)) {
        (void)count_in_thread(argument);
    }
    return NULL;
}

TEST(route, a_forked_child_counts_on) {
    fl_slot *slot = slot_of("forked");
    count(slot, FL_ROUTE_CPU, 1);
    stop_counting = false;
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, count_meanwhile, (void *)(uintptr_t)77), 0);
    for (int i = 0; i < 50; i++) {
        CHECK_INT(test_crash_of(count_in_child, slot), 0);
    }
    __atomic_store_n(&stop_counting, true, __ATOMIC_RELEASE);
    CHECK_INT(pthread_join(thread, NULL), 0);
}

TEST(route, strict_comes_from_the_option_until_it_is_set) {
    CHECK(!fl_route_is_strict());
    CHECK_OK(fl_option_set(FL_OPT_STRICT, "1"));
    CHECK(fl_route_is_strict());
    fl_route_set_strict(false);
    CHECK(!fl_route_is_strict());
    fl_route_set_strict(true);
    CHECK_OK(fl_option_set(FL_OPT_STRICT, "0"));
    CHECK(fl_route_is_strict());
}
