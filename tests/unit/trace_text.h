/* trace_text: what a source says of a file, as text, for the tests of the importers. */
#ifndef STK_TEST_TRACE_TEXT_H
#define STK_TEST_TRACE_TEXT_H

#include "traces/source.h"

/*
 * A step is "[seq@pos ...]", with a p behind the tokens of a prompt; an event " layer:ids,ids" with a comma between tokens and -
 * for none, then "=weights" where there are any, "^top_ids" likewise. An error is its detail. Lives until the next call.
 */
const char *trace_text(const char *path);
/* The same of a file with this content. */
const char *trace_text_of(const char *content);

#endif
