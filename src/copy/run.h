/*
 * run.h: carrying out a copy whose views were checked; private to src/copy.
 */
#ifndef FL_COPY_RUN_H
#define FL_COPY_RUN_H

#include "fl/copy.h"

/* As fl_copy_view, for checked views of one shape with elements. */
fl_status fl__copy_run(const fl_view *dst, fl_place dst_place, const fl_view *src,
                       fl_place src_place, bool non_blocking);

#endif
