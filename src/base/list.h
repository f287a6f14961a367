/*
 * list.h: an intrusive, circular, doubly linked list.
 *
 * A node is a member of what is listed; an empty list is a head that points at itself. Nothing is
 * allocated. The owner of the list locks it. Does not know what is listed.
 */
#ifndef FL_BASE_LIST_H
#define FL_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct fl__list {
    struct fl__list *prev, *next;
} fl__list;

/* The struct of type `type` whose member `member` is at `node`. */
#define FL__LIST_ENTRY(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void fl__list_init(fl__list *head) {
    head->prev = head;
    head->next = head;
}

static inline bool fl__list_is_empty(const fl__list *head) {
    return head->next == head;
}

static inline void fl__list_insert_between(fl__list *node, fl__list *prev, fl__list *next) {
    node->prev = prev;
    node->next = next;
    prev->next = node;
    next->prev = node;
}

static inline void fl__list_push_back(fl__list *head, fl__list *node) {
    fl__list_insert_between(node, head->prev, head);
}

static inline void fl__list_push_front(fl__list *head, fl__list *node) {
    fl__list_insert_between(node, head, head->next);
}

/* Put `node` in front of `place`, which is a node of the list or its head. */
static inline void fl__list_insert_before(fl__list *place, fl__list *node) {
    fl__list_insert_between(node, place->prev, place);
}

/* Take out a node; afterwards it is an empty list of its own, so removing it twice is harmless. */
static inline void fl__list_remove(fl__list *node) {
    node->prev->next = node->next;
    node->next->prev = node->prev;
    fl__list_init(node);
}

/* The first node taken out, NULL if the list is empty. */
static inline fl__list *fl__list_pop_front(fl__list *head) {
    if (fl__list_is_empty(head)) {
        return NULL;
    }
    fl__list *node = head->next;
    fl__list_remove(node);
    return node;
}

#endif
