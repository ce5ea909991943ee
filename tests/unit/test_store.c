/*
 * store: what is in a slot equals stk_layout_pack of the file's rows, however its parts landed; who hears of it and when; reads
 * ahead that are wanted, fail or lose their slot; what a drain lists; and of packed experts, that the slot is what is in the
 * file. Two layers of two classes, 4 experts each.
 */
#include "io_fixture.h"

#include "src/engine/store.h"

enum { L = 2, E = 4, N_SLOT = 4, N_EMBD = 256, FILE_BYTES = 2 << 20 };
#define SLOW "emu:20M,1ms"

typedef struct fixture {
    char path[TEMP_PATH];
    stk_catalogue *cat;
    stk_io *io;
    stk_slots *slots;
    stk_store *store;
    void *scratch;
    stk_arrival arrivals[2 * E];
    uint32_t n_arrival;
} fixture;

/* Experts lie one behind the other, aligned to nothing; the last one of layer 1 may lie beyond the end of the file. */
static void open_catalogue(fixture *t, bool beyond) {
    static const struct {
        enum stk_type gate, down;
        uint32_t n_ff;
    } kinds[L] = {{STK_TYPE_Q4_K, STK_TYPE_Q6_K, 512}, {STK_TYPE_F16, STK_TYPE_F32, 40}};
    stk_extent extents[L][STK_N_PART][E];
    stk_layer_experts layers[L];
    uint64_t offset = 1002;
    for (int l = 0; l < L; l++) {
        uint32_t n_ff = kinds[l].n_ff;
        layers[l] = (stk_layer_experts){.type = {kinds[l].gate, kinds[l].gate, kinds[l].down},
                                        .n_rows = {n_ff, n_ff, N_EMBD},
                                        .n_in = {N_EMBD, N_EMBD, n_ff}};
        for (int p = 0; p < STK_N_PART; p++) {
            uint64_t row;
            cr_assert_eq(stk_type_row_bytes(layers[l].type[p], layers[l].n_in[p], &row), 0);
            layers[l].extent[p] = extents[l][p];
            for (int e = 0; e < E; e++, offset += row * layers[l].n_rows[p] + 6) extents[l][p][e] = (stk_extent){0, offset};
        }
    }
    cr_assert_lt(offset, FILE_BYTES);
    if (beyond) extents[1][STK_DOWN][E - 1].offset = FILE_BYTES;
    cr_assert_eq(stk_catalogue_open(&t->cat, L, E, layers), 0, "%s", stk_error_detail());
}

/* Experts as in a packed file: those of layer 0 are two reads, those of layer 1 one. */
static void open_packed(fixture *t) {
    stk_extent extents[L][E];
    stk_layer_experts layers[L];
    uint64_t offset = 4096;
    for (int l = 0; l < L; l++) {
        uint32_t n_ff = l == 0 ? 768 : 40;
        layers[l] = (stk_layer_experts){.type = {STK_TYPE_Q4_K, STK_TYPE_Q4_K, l == 0 ? STK_TYPE_Q6_K : STK_TYPE_F32},
                                        .n_rows = {n_ff, n_ff, N_EMBD},
                                        .n_in = {N_EMBD, N_EMBD, n_ff},
                                        .packed = extents[l]};
        stk_class cls;
        cr_assert_eq(stk_class_packed(&layers[l], &cls), 0);
        for (int e = 0; e < E; e++, offset += cls.slot_bytes) extents[l][e] = (stk_extent){0, offset};
    }
    cr_assert_leq(offset, FILE_BYTES);
    cr_assert_eq(stk_catalogue_open(&t->cat, L, E, layers), 0, "%s", stk_error_detail());
}

static void begin_on(fixture *t, const char *spec, uint32_t depth, uint32_t n_share) {
    const uint32_t n_slot[L] = {N_SLOT, N_SLOT};
    t->io = open_one(spec, t->path, depth, 0);
    cr_assert_eq(stk_slots_open(&t->slots, t->cat, n_slot, false), 0, "%s", stk_error_detail());
    cr_assert_eq(stk_store_open(&t->store, t->cat, t->io, t->slots, n_share), 0, "%s", stk_error_detail());
    t->scratch = malloc(stk_catalogue_scratch_bytes(t->cat));
}

static void begin(fixture *t, const char *spec, uint32_t depth, uint32_t n_share, bool beyond) {
    memset(t, 0, sizeof *t);
    make_file(t->path, temp_dir(), FILE_BYTES);
    open_catalogue(t, beyond);
    begin_on(t, spec, depth, n_share);
}

static void begin_packed(fixture *t, const char *spec, uint32_t depth) {
    memset(t, 0, sizeof *t);
    make_file(t->path, temp_dir(), FILE_BYTES);
    open_packed(t);
    begin_on(t, spec, depth, 2);
}

static void end(fixture *t) {
    const uint32_t *keys;
    (void)stk_store_drain(t->store, &keys);
    stk_store_close(&t->store);
    stk_io_close(&t->io);
    stk_slots_close(&t->slots);
    stk_catalogue_close(&t->cat);
    free(t->scratch);
    unlink(t->path);
}

static stk_decision decision(uint32_t key, uint32_t slot, uint32_t victim) {
    return (stk_decision){.key = key, .expert = (uint16_t)(key % E), .kind = STK_ADMIT, .slot = slot, .victim = victim};
}

static void demand(fixture *t, uint32_t key, uint32_t slot, uint32_t victim, uint32_t index) {
    stk_decision d = decision(key, slot, victim);
    cr_assert_eq(stk_store_read(t->store, key / E, &d, index), 0, "%s", stk_error_detail());
}

static void ahead(fixture *t, uint32_t key, uint32_t slot, uint32_t victim) {
    stk_decision d = decision(key, slot, victim);
    cr_assert_eq(stk_store_prefetch(t->store, key / E, &d), 0, "%s", stk_error_detail());
}

static int want(fixture *t, uint32_t key, uint32_t slot, uint32_t index) {
    stk_decision d = decision(key, slot, STK_NO_KEY);
    return stk_store_want(t->store, &d, index);
}

static uint32_t pack(fixture *t, bool idle) {
    uint32_t n = stk_store_pick(t->store, idle);
    for (uint32_t i = n; i-- > 0;) stk_store_pack(t->store, i, t->scratch);
    return n ? (uint32_t)stk_store_settle(t->store) : 0;
}

/* What the engine does between batches. */
static void look(fixture *t, bool wait) {
    cr_assert_eq(stk_store_poll(t->store, wait), 0);
    (void)pack(t, wait);
    t->n_arrival = stk_store_take(t->store, t->arrivals, 2 * E);
}

/* All reads have ended; nothing is packed. */
static void let_land(fixture *t) {
    while (stk_io_in_flight(t->io)) {
        cr_assert_eq(stk_store_poll(t->store, false), 0);
        usleep(100);
    }
}

static bool part_is_packed(const fixture *t, uint32_t key, uint32_t slot, enum stk_part p) {
    uint32_t cls = stk_catalogue_layer_class(t->cat, key / E);
    const stk_part_shape *s = &stk_catalogue_class(t->cat, cls)->part[p];
    unsigned char *rows = malloc(s->file_bytes), *want = malloc(s->packed_bytes);
    fill(rows, stk_catalogue_extent(t->cat, key / E, key % E, p).offset, s->file_bytes);
    stk_layout_pack(s->type, s->n_rows, s->n_in, rows, want, t->scratch);
    bool same = memcmp((char *)stk_slots_at(t->slots, cls, slot) + s->slot_offset, want, s->packed_bytes) == 0;
    free(rows);
    free(want);
    return same;
}

static bool is_packed(const fixture *t, uint32_t key, uint32_t slot) {
    return part_is_packed(t, key, slot, STK_GATE) && part_is_packed(t, key, slot, STK_UP) &&
           part_is_packed(t, key, slot, STK_DOWN);
}

/* Waits for the expert of `index` alone; returns how many arrivals of gate and up came before. */
static uint32_t until_there(fixture *t, uint32_t index) {
    for (uint32_t n_up = 0;;) {
        look(t, true);
        for (uint32_t i = 0; i < t->n_arrival; i++) {
            const stk_arrival *a = &t->arrivals[i];
            cr_assert(a->index == index && a->status == 0, "index %u, status %d", a->index, a->status);
            if (a->phases == STK_PHASE_ALL) {
                cr_assert_eq(i + 1, t->n_arrival);
                return n_up;
            }
            cr_assert_eq(a->phases, STK_PHASE_UP);
            n_up++;
        }
    }
}

Test(store, what_is_there_is_packed_however_it_came) {
    static const char *const specs[] = {"pread", "emu:2G,50us", "emu:2G,50us,reorder,seed=3", "emu:1G,20us,reorder,seed=8",
                                        "emu:2G,50us,short=2"};
    for (size_t c = 0; c < 3 * STK_ARRAY_LEN(specs); c++) {
        fixture t;
        uint32_t phases[E], n_left;
        begin(&t, specs[c / 3], 0, 1 + (uint32_t)c % 3, false);
        for (uint32_t l = 0; l < L; l++) {
            memset(phases, 0, sizeof phases);
            for (uint32_t e = 0; e < E; e++) demand(&t, l * E + e, (e + 1) % N_SLOT, STK_NO_KEY, e);
            for (n_left = E; n_left > 0;) {
                look(&t, true);
                for (uint32_t i = 0; i < t.n_arrival; i++) {
                    const stk_arrival *a = &t.arrivals[i];
                    cr_assert_eq(a->status, 0);
                    cr_assert_gt(a->phases, phases[a->index], "phases %u after %u", a->phases, phases[a->index]);
                    phases[a->index] = a->phases;
                    n_left -= a->phases == STK_PHASE_ALL;
                }
            }
            look(&t, false);
            cr_assert_eq(t.n_arrival, 0);
            for (uint32_t e = 0; e < E; e++)
                cr_assert(is_packed(&t, l * E + e, (e + 1) % N_SLOT), "%s: expert %u of layer %u", specs[c / 3], e, l);
        }
        end(&t);
    }
}

Test(store, gate_and_up_arrive_before_the_rest) {
    fixture t;
    begin(&t, SLOW, 1, 2, false);
    demand(&t, 1, 2, STK_NO_KEY, 7);
    do look(&t, true);
    while (t.n_arrival == 0);
    cr_assert(t.n_arrival == 1 && t.arrivals[0].index == 7 && t.arrivals[0].phases == STK_PHASE_UP);
    cr_assert(part_is_packed(&t, 1, 2, STK_GATE) && part_is_packed(&t, 1, 2, STK_UP));
    cr_assert_eq(until_there(&t, 7), 0);
    cr_assert(is_packed(&t, 1, 2));
    end(&t);
}

Test(store, an_expert_read_ahead_is_told_to_nobody) {
    fixture t;
    begin(&t, "pread", 0, 2, false);
    ahead(&t, 2, 1, STK_NO_KEY);
    let_land(&t);
    cr_assert_eq(pack(&t, false), 0, "it is packed though there may be better to do");
    stk_class cls = *stk_catalogue_class(t.cat, 0);
    cr_assert_eq(pack(&t, true), cls.payload_bytes);
    cr_assert_eq(stk_store_take(t.store, t.arrivals, 2 * E), 0);
    cr_assert_eq(want(&t, 2, 1, 0), 1);
    cr_assert(is_packed(&t, 2, 1));
    end(&t);
}

Test(store, an_expert_read_ahead_is_wanted_at_any_time) {
    for (uint32_t landed = 0; landed <= 3; landed++) { /* not at all; unpacked; its gate and up packed; and down landed */
        fixture t;
        begin(&t, landed == 1 ? "pread" : SLOW, 1, 3, false);
        ahead(&t, 3, 0, STK_NO_KEY);
        if (landed == 1) let_land(&t);
        uint64_t up_bytes = 2 * stk_catalogue_class(t.cat, 0)->part[STK_UP].file_bytes, bytes = 0;
        while (landed >= 2 && bytes < up_bytes) {
            cr_assert_eq(stk_store_poll(t.store, true), 0);
            bytes += pack(&t, true);
        }
        if (landed == 3) let_land(&t);
        cr_assert_eq(want(&t, 3, 0, 5), 0);
        cr_assert_eq(until_there(&t, 5), 1, "landed: %u", landed); /* one after the other: gate and up before down */
        cr_assert(is_packed(&t, 3, 0));
        cr_assert_eq(want(&t, 3, 0, 5), 1);
        end(&t);
    }
}

Test(store, a_failed_read_ahead_is_read_again_when_it_is_wanted) {
    for (uint64_t part = 1; part <= STK_N_PART; part++)
        for (int late = 0; late < 2; late++) {
            fixture t;
            begin(&t, SLOW, 1, 2, false);
            stk_io_set_faults(t.io, &(stk_io_faults){.eio_at = part});
            ahead(&t, 1, 3, STK_NO_KEY);
            if (late) let_land(&t);
            if (late) (void)pack(&t, true);
            cr_assert_eq(want(&t, 1, 3, 2), 0);
            (void)until_there(&t, 2);
            cr_assert(is_packed(&t, 1, 3), "part %d, late: %d", (int)part, late);
            end(&t);
        }
}

/* Cancelled in vain, before or after anything of it has come, and wanted at once or when the cancellation is over. */
Test(store, what_was_given_up_as_stale_is_read_when_it_is_wanted_after_all) {
    for (uint32_t came = 0; came < 2; came++)
        for (int late = 0; late < 2; late++) {
            fixture t;
            uint64_t demand_bytes, ahead_bytes;
            begin(&t, SLOW, 1, 2, false);
            ahead(&t, 1, 3, STK_NO_KEY);
            ahead(&t, 2, 2, STK_NO_KEY);
            stk_store_backlog(t.store, &demand_bytes, &ahead_bytes);
            cr_assert(demand_bytes == 0 && ahead_bytes > 0);
            while (came && stk_store_pick(t.store, true) == 0) cr_assert_eq(stk_store_poll(t.store, true), 0);
            if (came) cr_assert_gt(stk_store_settle(t.store), 0);
            stk_store_stale(t.store, 1);
            stk_store_stale(t.store, 0); /* nobody asked for it */
            if (late) let_land(&t);
            cr_assert_eq(want(&t, 1, 3, 2), 0);
            stk_store_stale(t.store, 1); /* it is not stale any more */
            (void)until_there(&t, 2);
            if (!came) cr_assert(is_packed(&t, 1, 3), "late: %d", late);
            let_land(&t);
            stk_store_backlog(t.store, &demand_bytes, &ahead_bytes);
            cr_assert(demand_bytes == 0 && ahead_bytes == 0);
            end(&t);
        }
}

Test(store, what_is_stale_and_not_wanted_is_not_read_on) {
    fixture t;
    stk_io_counters c;
    begin(&t, "emu:1M,1ms", 1, 1, false); /* 70 ms a part: a busy machine may pause this test between the two calls */
    ahead(&t, 0, 0, STK_NO_KEY);
    stk_store_stale(t.store, 0);
    let_land(&t);
    stk_io_get_counters(t.io, &c);
    cr_assert_leq(c.read_bytes, 80 << 10, "the first of three parts was under way");
    const uint32_t *keys;
    cr_assert(stk_store_drain(t.store, &keys) == 1 && keys[0] == 0, "it is not there");
    end(&t);
}

/* Gate and up may be in use while the rest is tried again. */
Test(store, what_is_packed_is_not_read_again) {
    fixture t;
    stk_io_counters c;
    begin(&t, SLOW, 1, 1, false);
    stk_io_set_faults(t.io, &(stk_io_faults){.eio_at = 3});
    ahead(&t, 0, 1, STK_NO_KEY);
    cr_assert_eq(want(&t, 0, 1, 4), 0);
    do look(&t, true);
    while (t.n_arrival == 0);
    cr_assert(t.n_arrival == 1 && t.arrivals[0].phases == STK_PHASE_UP);
    do {
        cr_assert(part_is_packed(&t, 0, 1, STK_GATE) && part_is_packed(&t, 0, 1, STK_UP));
        look(&t, false);
    } while (t.n_arrival == 0);
    cr_assert(t.n_arrival == 1 && t.arrivals[0].status == 0 && t.arrivals[0].phases == STK_PHASE_ALL);
    stk_io_get_counters(t.io, &c);
    cr_assert_eq(c.n_read, STK_N_PART + 1);
    cr_assert(is_packed(&t, 0, 1));
    end(&t);
}

Test(store, a_failed_demand_arrives_once_with_its_reason) {
    for (uint64_t part = 1; part <= STK_N_PART; part++) {
        fixture t;
        bool failed = false;
        begin(&t, "emu:2G,20us", 0, 2, false);
        stk_io_set_faults(t.io, &(stk_io_faults){.eio_at = part});
        demand(&t, 6, 0, STK_NO_KEY, 1);
        while (!failed) {
            look(&t, true);
            if (t.n_arrival == 0) continue;
            const stk_arrival *a = &t.arrivals[t.n_arrival - 1];
            failed = a->status < 0;
            cr_assert(failed ? a->status == STK_EIO && a->phases == 0 : a->phases == STK_PHASE_UP);
        }
        cr_assert(strstr(stk_error_detail(), t.path), "%s", stk_error_detail());
        look(&t, false);
        cr_assert_eq(t.n_arrival, 0);
        demand(&t, 6, 0, STK_NO_KEY, 1);
        (void)until_there(&t, 1);
        cr_assert(is_packed(&t, 6, 0));
        end(&t);
    }
}

Test(store, a_victim_that_is_still_coming_is_given_up) {
    for (int by_demand = 0; by_demand < 2; by_demand++) {
        fixture t;
        const uint32_t *keys;
        begin(&t, SLOW, 2, 2, false);
        ahead(&t, 0, 1, STK_NO_KEY);
        ahead(&t, 3, 2, STK_NO_KEY);
        cr_assert_eq(stk_store_poll(t.store, true), 0);
        if (by_demand)
            demand(&t, 2, 1, 0, 9);
        else
            ahead(&t, 2, 1, 0);
        if (!by_demand) cr_assert_eq(want(&t, 2, 1, 9), 0);
        (void)until_there(&t, 9);
        cr_assert(is_packed(&t, 2, 1));
        while (want(&t, 3, 2, 8) == 0) look(&t, true);
        cr_assert(is_packed(&t, 3, 2));
        cr_assert_eq(stk_store_drain(t.store, &keys), 0, "nothing is missing that has a slot");
        end(&t);
    }
}

Test(store, a_drain_lists_what_was_asked_for_and_is_not_there) {
    fixture t;
    const uint32_t *keys;
    begin(&t, SLOW, 0, 2, false);
    demand(&t, 1, 1, STK_NO_KEY, 0);
    (void)until_there(&t, 0);
    stk_io_set_faults(t.io, &(stk_io_faults){.eio_at = 5});
    ahead(&t, 2, 2, STK_NO_KEY); /* fails */
    let_land(&t);
    ahead(&t, 4, 0, STK_NO_KEY); /* lands, and is not packed */
    let_land(&t);
    demand(&t, 0, 0, STK_NO_KEY, 1); /* on its way, as is: */
    ahead(&t, 7, 3, STK_NO_KEY);
    cr_assert_eq(stk_store_drain(t.store, &keys), 4);
    cr_assert(keys[0] == 0 && keys[1] == 2 && keys[2] == 4 && keys[3] == 7);
    cr_assert_eq(stk_io_in_flight(t.io), 0);
    cr_assert_eq(stk_store_drain(t.store, &keys), 0);
    look(&t, true);
    cr_assert_eq(t.n_arrival, 0);
    cr_assert(is_packed(&t, 1, 1), "what is there stays");
    demand(&t, 4, 0, STK_NO_KEY, 3);
    (void)until_there(&t, 3);
    cr_assert(is_packed(&t, 4, 0));
    end(&t);
}

Test(store, a_call_that_fails_leaves_its_expert_among_the_lost) {
    enum { BEYOND = 2 * E - 1 };
    fixture t;
    const uint32_t *keys;
    begin(&t, "pread", 0, 1, true);
    stk_decision d = decision(BEYOND, 0, STK_NO_KEY);
    cr_assert_eq(stk_store_read(t.store, 1, &d, 0), STK_EINVAL);
    cr_assert_eq(stk_store_drain(t.store, &keys), 1);
    cr_assert_eq(keys[0], BEYOND);
    cr_assert_eq(stk_store_prefetch(t.store, 1, &d), STK_EINVAL);
    cr_assert_eq(stk_store_drain(t.store, &keys), 1);
    cr_assert_eq(keys[0], BEYOND);
    end(&t);
}

/* ---- Packed -------------------------------------------------------------------------------------------------------------- */

/* Bytes [from, end) of the slot are those of the file. */
static bool is_as_in_file(const fixture *t, uint32_t key, uint32_t slot, uint64_t from, uint64_t end) {
    uint32_t cls = stk_catalogue_layer_class(t->cat, key / E);
    unsigned char *want = malloc(end);
    fill(want, stk_catalogue_extent(t->cat, key / E, key % E, STK_GATE).offset, end);
    bool same = memcmp((char *)stk_slots_at(t->slots, cls, slot) + from, want + from, end - from) == 0;
    free(want);
    return same;
}

static uint64_t slot_bytes(const fixture *t, uint32_t key) {
    return stk_catalogue_class(t->cat, stk_catalogue_layer_class(t->cat, key / E))->slot_bytes;
}

Test(store, packed_experts_are_there_when_they_have_landed) {
    static const char *const specs[] = {"pread", "emu:2G,50us,reorder,seed=3", "emu:2G,50us,short=2"};
    for (size_t c = 0; c < STK_ARRAY_LEN(specs); c++) {
        fixture t;
        stk_io_counters n;
        begin_packed(&t, specs[c], 0);
        for (uint32_t key = 0; key < L * E; key++) {
            demand(&t, key, key % N_SLOT, STK_NO_KEY, 3);
            cr_assert_leq(until_there(&t, 3), 1);
            cr_assert_eq(stk_store_pick(t.store, true), 0, "there is nothing to pack");
            cr_assert(is_as_in_file(&t, key, key % N_SLOT, 0, slot_bytes(&t, key)), "%s: expert %u", specs[c], key);
        }
        stk_io_get_counters(t.io, &n);
        cr_assert_eq(n.n_read, 2 * E + E, "two reads an expert of layer 0, one of layer 1");
        end(&t);
    }
}

Test(store, gate_and_up_of_a_packed_expert_arrive_first) {
    fixture t;
    begin_packed(&t, SLOW, 1);
    uint64_t down_at = stk_catalogue_class(t.cat, 0)->part[STK_DOWN].slot_offset;
    demand(&t, 1, 2, STK_NO_KEY, 7);
    do look(&t, true);
    while (t.n_arrival == 0);
    cr_assert(t.n_arrival == 1 && t.arrivals[0].index == 7 && t.arrivals[0].phases == STK_PHASE_UP);
    cr_assert(is_as_in_file(&t, 1, 2, 0, down_at));
    cr_assert_eq(until_there(&t, 7), 0);
    cr_assert(is_as_in_file(&t, 1, 2, 0, slot_bytes(&t, 1)));
    end(&t);
}

Test(store, packed_experts_read_ahead_are_wanted_or_fail) {
    for (uint64_t failing = 0; failing <= 2; failing++) /* none, or the first or second read */
        for (int late = 0; late < 2; late++) {
            fixture t;
            begin_packed(&t, SLOW, 1);
            stk_io_set_faults(t.io, &(stk_io_faults){.eio_at = failing});
            ahead(&t, 1, 3, STK_NO_KEY);
            if (late) let_land(&t);
            cr_assert_eq(stk_store_take(t.store, t.arrivals, 2 * E), 0);
            bool there = late && !failing;
            cr_assert_eq(want(&t, 1, 3, 2), there);
            if (!there) (void)until_there(&t, 2);
            cr_assert(is_as_in_file(&t, 1, 3, 0, slot_bytes(&t, 1)), "read %d, late: %d", (int)failing, late);
            cr_assert_eq(want(&t, 1, 3, 2), 1);
            end(&t);
        }
}

Test(store, a_drain_leaves_packed_experts_that_have_landed) {
    fixture t;
    const uint32_t *keys;
    begin_packed(&t, SLOW, 1);
    ahead(&t, 0, 0, STK_NO_KEY);
    let_land(&t);
    demand(&t, 2, 1, STK_NO_KEY, 1);
    cr_assert_eq(stk_store_drain(t.store, &keys), 1);
    cr_assert_eq(keys[0], 2);
    cr_assert_eq(want(&t, 0, 0, 5), 1);
    cr_assert(is_as_in_file(&t, 0, 0, 0, slot_bytes(&t, 0)));
    end(&t);
}
