/*
 * text.h: text that others wrote, made fit to be shown: valid UTF-8, and never ending in the middle
 * of a character. Whoever reads our texts decodes them, and would fail where we only wanted to tell
 * of another failure. Knows nothing of who wrote it.
 */
#ifndef FL_SRC_BASE_TEXT_H
#define FL_SRC_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "fl/types.h"

/* Every byte that belongs to no character of UTF-8 becomes '?'. Where the text `was_cut` by a
 * limit, the character that it cut in two goes instead. */
void fl__text_mend(char *text, bool was_cut);

/* snprintf for such a text. True when all of it had room. */
bool fl__text_print(char *out, size_t size, const char *format, ...) FL_PRINTF(3, 4);
bool fl__text_vprint(char *out, size_t size, const char *format, va_list arguments);

#endif
