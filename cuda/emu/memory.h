/* memory: device and pinned memory of the emulated GPU. Private to cuda/emu; the caller holds the runtime's lock. */
#ifndef STK_EMU_MEMORY_H
#define STK_EMU_MEMORY_H

#include "cuda/emu/emu.h"

void stk_emu_memory_reset(uint64_t vram_bytes, uint64_t pin_bytes);
/* The codes of emu.h. */
int stk_emu_memory_open(void **out, size_t bytes, bool device);
int stk_emu_memory_close(void *p, bool device);
int stk_emu_memory_register(void *p, size_t bytes);
int stk_emu_memory_unregister(void *p);

enum stk_emu_where { STK_EMU_PAGEABLE, STK_EMU_PINNED, STK_EMU_DEVICE, STK_EMU_PARTLY };
/* Where [p, p + bytes) lies; PARTLY when it leaves an allocation. */
enum stk_emu_where stk_emu_memory_where(const void *p, size_t bytes);
/* NULL, or a text naming an allocation that something wrote beyond the end of. */
const char *stk_emu_memory_check(void);
void stk_emu_memory_stats(stk_emu_stats *stats);

#endif
