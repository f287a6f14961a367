/*
 * rows.h: chips that a file describes (option TORCH_FL_VENDOR_ROWS), so that one can be added
 * without a compiler. docs/driver.md has the format.
 */
#ifndef FL_SRC_DRIVER_ROWS_H
#define FL_SRC_DRIVER_ROWS_H

#include "driver/cudalike.h"

/* Read rows from `text`, `bytes` long; `file` is for messages. Each row becomes a platform that is
 * given to `take` and lives as long as the process; nothing is given if the text has a mistake,
 * and FL_INVALID_ARGUMENT says in which line. */
fl_status fl__rows_parse(const char *text, size_t bytes, const char *file,
                         fl_status (*take)(const fl_platform *platform));

/* The same for the file that the option names; FL_OK without one. A file is read once, a second
 * call gives the same platforms. */
fl_status fl__rows_load(fl_status (*take)(const fl_platform *platform));

#endif
