/*
 * link: experts between RAM and the slots of a device, and those slots themselves.
 *
 * A copy goes in pieces of a MiB, few of them at a time, so that one that is urgent waits for a piece and not for an expert. What
 * is not pinned goes through a ring of pinned pieces. Copies up are asked for and then moved on by stk_link_pump, between other
 * work of the same thread; copies down go into bounce buffers, from which an expert is computed, or put into a slot of RAM.
 *
 * Who may call it: gpu_experts.c, engine_device.c. Threads: the engine's owner. All memory is taken at open.
 */
#ifndef STK_LINK_H
#define STK_LINK_H

#include "device.h"
#include "experts/slots.h"

enum { STK_LINK_PIECE = 1 << 20, STK_LINK_N_PIECE = 4, STK_LINK_N_BOUNCE = 4 };

typedef struct stk_link stk_link;

typedef struct stk_link_config {
    stk_device *device;
    const stk_catalogue *cat;
    const stk_slots *ram;   /* the slots that copies come from */
    const uint32_t *n_slot; /* [n_class] on the device */
    /* [n_class] how many of ram's slots are pinned, the first ones; as of each call of stk_link_up. */
    const uint32_t *n_pinned;
    uint64_t staging_bytes; /* 0: STK_LINK_N_BOUNCE bounce buffers */
} stk_link_config;

typedef struct stk_link_counters {
    uint64_t up_bytes, down_bytes;
} stk_link_counters;

/* Bytes of staging that config asks for, and the least. */
uint64_t stk_link_staging_bytes(const stk_link_config *config);
uint64_t stk_link_staging_least(const stk_catalogue *cat);

/* Errors: STK_ENOMEM, STK_EIO, STK_EBUDGET (staging; names the least). */
int stk_link_open(stk_link **out, const stk_link_config *config) STK_CHECKED;
void stk_link_close(stk_link **link);

/* A slot's memory on the device. */
const void *stk_link_slot(const stk_link *link, uint32_t cls, uint32_t slot);
uint32_t stk_link_n_bounce(const stk_link *link);
const void *stk_link_bounce(const stk_link *link, uint32_t i);

/* Asks for a copy of an expert from a slot of RAM to one of the device; `tag` names it to stk_link_failed. After `down` copies
 * that were queued before. Fewer than STK_LINK_N_UP at a time. */
enum { STK_LINK_N_UP = 64 };
void stk_link_up(stk_link *link, uint32_t cls, uint32_t ram_slot, uint32_t slot, uint32_t tag);
/* Moves the copies on, as far as pieces are free; with wait, until all are queued. */
void stk_link_pump(stk_link *link, bool wait);
/* Whether a copy up could not be queued. Forgotten with stk_link_reset, when all are through. */
bool stk_link_failed(const stk_link *link, uint32_t tag);
void stk_link_reset(stk_link *link);
/* Copies that were queued up to now are done before what `stream` gets next. */
int stk_link_before(stk_link *link, stk_cuda_stream *stream) STK_CHECKED;
/* All of them are done when it returns. */
int stk_link_sync(stk_link *link) STK_CHECKED;

/* Queues a copy of a slot of the device into bounce buffer i. */
int stk_link_down(stk_link *link, uint32_t cls, uint32_t slot, uint32_t i) STK_CHECKED;
/* What is in bounce buffer i into a slot of RAM. */
void stk_link_restore(stk_link *link, uint32_t cls, uint32_t i, uint32_t ram_slot);

void stk_link_get_counters(const stk_link *link, stk_link_counters *counters);

#endif
