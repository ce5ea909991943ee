/* peak_amx: the peaks of AMX-int8; what is no product of codes is as with AVX-512. */
#include "cpu/amx.h"
#include "cpu/peak.h"

static uint64_t read_lanes(const void *base, uint64_t bytes, uint32_t n_stream, bool ahead) {
    return stk_peak_ops_avx512.read(base, bytes, n_stream, ahead);
}

static uint64_t f32_lanes(uint64_t n_round) { return stk_peak_ops_avx512.f32(n_round); }

/* Four sums of whole tiles, in turn, as the products of tiles pass through one unit. */
static uint64_t int8_tiles(uint64_t n_round) {
    tile_config c = {.palette = 1};
    for (int t = 0; t < N_TILE; t++) c.n_row[t] = TILE_ROWS, c.row_bytes[t] = TILE_BYTES;
    TILE_CONFIGURE(&c); /* makes them zero */
    for (uint64_t r = 0; r < n_round; r++) {
        TILE_DOT(0, 4, 5);
        TILE_DOT(1, 4, 5);
        TILE_DOT(2, 4, 5);
        TILE_DOT(3, 4, 5);
    }
    TILE_RELEASE();
    return n_round * 4 * TILE_ROWS * (TILE_BYTES / 4) * TILE_BYTES * 2;
}

const stk_peak_ops stk_peak_ops_amx = {.name = "amx", .read = read_lanes, .int8 = int8_tiles, .f32 = f32_lanes};
