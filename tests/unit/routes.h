/* routes: recorded routing of whole sequences, for tests and tools: which experts each layer used for each token. */
#ifndef STK_TEST_ROUTES_H
#define STK_TEST_ROUTES_H

#include <stdbool.h>
#include <stdint.h>

enum { ROUTES_NONE = 0xffff };

typedef struct routes {
    uint32_t n_layer, n_expert, k, n_seq;
    uint32_t *n_tok; /* [n_seq] */
    uint16_t *ids;   /* [tokens of all sequences, n_layer, k]; ROUTES_NONE for none */
} routes;

/* Reads an .mrt8.xz file (needs the program xz), a .route.csv, or a router-trace .json, by the end of its name. False when it
 * cannot be read or makes no sense. */
bool routes_read(routes *r, const char *path);
void routes_free(routes *r);

#endif
