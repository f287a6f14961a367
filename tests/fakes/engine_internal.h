/*
 * engine_internal.h: what engine.c and engine_streams.c share.
 */
#ifndef FL_TESTS_FAKES_ENGINE_INTERNAL_H
#define FL_TESTS_FAKES_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine.h"

fake_result fake_from_status(fl_status status);
void fake_enter_host_function(bool enter);

#endif
