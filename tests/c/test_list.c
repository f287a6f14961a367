/* test_list.c: the intrusive list against an array. */
#include "base/list.h"

#include <string.h>

#include "harness.h"

typedef struct item {
    int value;
    fl__list link;
} item;

static void check_order(fl__list *head, const int *wanted, int count) {
    fl__list *node = head->next;
    for (int i = 0; i < count; i++, node = node->next) {
        CHECK(node != head);
        CHECK_POINTER(node->next->prev, node);
        CHECK_INT(FL__LIST_ENTRY(node, item, link)->value, wanted[i]);
    }
    CHECK_POINTER(node, head);
}

TEST(list, random_steps_equal_an_array) {
    enum { COUNT = 20 };
    item items[COUNT];
    bool listed[COUNT] = {false};
    int order[COUNT];
    int count = 0;
    uint64_t seed = 1234;
    fl__list head;
    fl__list_init(&head);
    for (int i = 0; i < COUNT; i++) {
        items[i].value = i;
        fl__list_init(&items[i].link);
    }
    for (int step = 0; step < 20000; step++) {
        int i = (int)(test_random(&seed) % COUNT);
        if (listed[i]) {
            int at = 0;
            while (order[at] != i) {
                at++;
            }
            memmove(&order[at], &order[at + 1], (size_t)(count - at - 1) * sizeof(order[0]));
            count--;
            fl__list_remove(&items[i].link);
            fl__list_remove(&items[i].link); /* Twice is harmless. */
        } else {
            int at = 0;
            switch (test_random(&seed) % 3) {
            case 0:
                at = count;
                fl__list_push_back(&head, &items[i].link);
                break;
            case 1:
                fl__list_push_front(&head, &items[i].link);
                break;
            default:
                at = count ? (int)(test_random(&seed) % (uint64_t)count) : 0;
                fl__list_insert_before(count ? &items[order[at]].link : &head, &items[i].link);
                break;
            }
            memmove(&order[at + 1], &order[at], (size_t)(count - at) * sizeof(order[0]));
            order[at] = i;
            count++;
        }
        listed[i] = !listed[i];
        CHECK_INT(fl__list_is_empty(&head), count == 0);
        check_order(&head, order, count);
    }
    for (int i = 0; i < count; i++) {
        CHECK_POINTER(fl__list_pop_front(&head), &items[order[i]].link);
    }
    CHECK_POINTER(fl__list_pop_front(&head), NULL);
}
