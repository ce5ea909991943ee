/*
 * spec: a policy or predictor as a user names it, with its parameters: NAME or NAME:PARAMETER=VALUE,...
 *
 * Who may call it: src/. Pure.
 */
#ifndef STK_SPEC_H
#define STK_SPEC_H

#include "base.h"

enum { STK_SPEC_NAME_BYTES = 32, STK_SPEC_BYTES = 256 /* of a text that is kept */ };

typedef struct stk_spec {
    char name[STK_SPEC_NAME_BYTES]; /* cut off where it is longer, and then nobody's name */
    const char *params;             /* points into the text; NULL: none */
} stk_spec;

stk_spec stk_spec_parse(const char *text);

#endif
