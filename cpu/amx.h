/*
 * amx: the tile instructions that the int8 products use, and with STK_AMX_EMU the same in plain C, for the kernel checker on CPUs
 * that lack them. Tile numbers are literals, as the instructions hold them.
 *
 * The emulation keeps the rules of the manual: a tile has the rows and bytes of the loaded configuration, what lies beyond them
 * becomes zero, and shapes that do not fit one another, which fault on the CPU, end the program.
 *
 * Private to the files that are compiled for it. A thread's configuration is its own: who loads one releases it.
 */
#ifndef STK_CPU_AMX_H
#define STK_CPU_AMX_H

#include <stdint.h>

enum { TILE_ROWS = 16, TILE_BYTES = 64, N_TILE = 8 };

/* The operand of ldtilecfg, palette 1. Tiles of zero rows must not be used. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16]; /* the last eight are reserved */
    uint8_t n_row[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "as the instruction reads it");

#ifndef STK_AMX_EMU

/* Written here, as the intrinsics of some GCCs (before 12.4) do not say what memory they read. */
#define TILE_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(const tile_config *)(config)))
#define TILE_RELEASE()         __asm__ volatile("tilerelease")
#define TILE_ZERO(t)           __asm__ volatile("tilezero %%tmm" #t : :)
#define TILE_LOAD(t, at, stride)                                                                                                 \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"((const void *)(at)), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, at, stride)                                                                                                \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"((void *)(at)), "r"((int64_t)(stride)) : "memory")
/* c += the int8 codes of a times the uint8 codes of b, by fours. */
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#else

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the thread, as in its registers. */
static _Thread_local struct {
    tile_config config;
    uint8_t row[N_TILE][TILE_ROWS][TILE_BYTES];
} emu;
extern uint64_t stk_amx_emu_n_dot; /* products of tiles so far: whether the tiles have been used at all */

static inline void emu_need(int holds, const char *rule) {
    if (holds) return;
    fprintf(stderr, "emulated tiles: %s\n", rule);
    abort();
}

static inline void emu_configure(const tile_config *c) {
    emu_need(c->palette == 1 && c->start_row == 0, "the palette is 1 and the start row 0");
    for (int i = 0; i < 14; i++) emu_need(c->reserved[i] == 0, "reserved bytes are zero");
    for (int t = 0; t < 16; t++) {
        emu_need(t < N_TILE || (c->n_row[t] == 0 && c->row_bytes[t] == 0), "there are eight tiles");
        emu_need(c->n_row[t] <= TILE_ROWS && c->row_bytes[t] <= TILE_BYTES, "a tile has 16 rows of 64 bytes");
        emu_need((c->n_row[t] == 0) == (c->row_bytes[t] == 0), "no rows means no bytes");
    }
    emu.config = *c;
    memset(emu.row, 0, sizeof emu.row);
}

static inline void emu_need_tile(int t) { emu_need(emu.config.palette == 1 && emu.config.n_row[t], "the tile is configured"); }

static inline void emu_zero(int t) {
    emu_need_tile(t);
    memset(emu.row[t], 0, sizeof emu.row[t]);
}

static inline void emu_load(int t, const void *at, int64_t stride) {
    emu_zero(t);
    for (int r = 0; r < emu.config.n_row[t]; r++) memcpy(emu.row[t][r], (const char *)at + r * stride, emu.config.row_bytes[t]);
}

static inline void emu_store(int t, void *at, int64_t stride) {
    emu_need_tile(t);
    for (int r = 0; r < emu.config.n_row[t]; r++) memcpy((char *)at + r * stride, emu.row[t][r], emu.config.row_bytes[t]);
}

static inline int32_t emu_dot4(int32_t sum, const uint8_t *a, const uint8_t *b) {
    for (int i = 0; i < 4; i++) sum = (int32_t)((uint32_t)sum + (uint32_t)((int8_t)a[i] * (int32_t)b[i]));
    return sum;
}

static inline void emu_dot(int c, int a, int b) {
    const tile_config *g = &emu.config;
    emu_need_tile(c);
    emu_need_tile(a);
    emu_need_tile(b);
    emu_need(c != a && c != b && a != b, "the three tiles differ");
    emu_need(g->n_row[c] == g->n_row[a] && g->row_bytes[c] == g->row_bytes[b], "the sums are as many as the factors ask");
    emu_need(g->row_bytes[a] % 4 == 0 && g->row_bytes[b] % 4 == 0 && g->row_bytes[a] / 4 == g->n_row[b], "the factors match");
    for (int m = 0; m < g->n_row[c]; m++)
        for (int n = 0; n < g->row_bytes[c]; n += 4) {
            int32_t sum;
            memcpy(&sum, &emu.row[c][m][n], sizeof sum);
            for (int k = 0; k < g->n_row[b]; k++) sum = emu_dot4(sum, &emu.row[a][m][4 * k], &emu.row[b][k][n]);
            memcpy(&emu.row[c][m][n], &sum, sizeof sum);
        }
    stk_amx_emu_n_dot++;
}

#define TILE_CONFIGURE(config)    emu_configure(config)
#define TILE_RELEASE()            memset(&emu, 0, sizeof emu)
#define TILE_ZERO(t)              emu_zero(t)
#define TILE_LOAD(t, at, stride)  emu_load(t, at, stride)
#define TILE_STORE(t, at, stride) emu_store(t, at, stride)
#define TILE_DOT(c, a, b)         emu_dot(c, a, b)

#endif
#endif
