/*
 * timeline_lanes: the intervals of a timeline in the order in which they begin, each in a lane of its queue, so that no two of a
 * lane overlap. Private to timeline*.c.
 */
#ifndef STK_CLI_TIMELINE_LANES_H
#define STK_CLI_TIMELINE_LANES_H

#include "timeline.h"

enum { CLI_MOST_LANES = 32 };

typedef struct cli_queue {
    const char *name;
    uint32_t n_lane;
} cli_queue;

typedef struct cli_lanes {
    const stk_work **work; /* [n] */
    uint8_t *lane;         /* [n] in its queue */
    uint64_t n, n_lost;
    cli_queue queues[STK_N_WORK]; /* [n_queue] */
    uint32_t n_queue;
    uint32_t queue[STK_N_WORK]; /* of a kind of work */
} cli_lanes;

/* The picture; nothing of the file is left after a failure. */
int cli_timeline_svg(const cli_timeline *t, const cli_lanes *lanes, const char *what);

#endif
