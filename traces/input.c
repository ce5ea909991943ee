/* input: plain, zstd and xz files behind one buffer. */
#include "traces/input.h"

#include <errno.h>
#include <fcntl.h>
#include <lzma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

enum { BUFFER_BYTES = 1 << 16, WINDOW_LOG = 27 };
#define XZ_MEMORY (UINT64_C(128) << 20)

enum packing { PLAIN, PACKED_ZSTD, PACKED_XZ };

struct stk_input {
    int fd;
    uint64_t total, file_offset; /* of the file; bytes read from it */
    enum packing packing;
    ZSTD_DCtx *zstd;
    lzma_stream xz;
    bool frame_open; /* the packed stream is within a frame */
    bool ended;      /* nothing more comes out */

    uint8_t *file; /* [BUFFER_BYTES] read and not yet unpacked: */
    size_t file_at, file_end;
    uint8_t *data; /* [BUFFER_BYTES] unpacked: */
    size_t at, end;
    uint64_t offset; /* of data[end] in the unpacked stream */

    char *line;
    size_t line_cap;
    uint64_t line_number;
};

/* ---- The file ----------------------------------------------------------------------------------------------------------- */

/* Refills `file` when it is empty; leaves it empty at the end. */
static int fill_file(stk_input *in) {
    if (in->file_at < in->file_end) return 0;
    in->file_at = in->file_end = 0;
    ssize_t n;
    do n = read(in->fd, in->file, BUFFER_BYTES);
    while (n < 0 && errno == EINTR);
    if (n < 0) return stk_fail_errno(errno, "read at byte %llu", (unsigned long long)in->file_offset);
    in->file_end = (size_t)n;
    in->file_offset += (uint64_t)n;
    return 0;
}

static int damaged(const stk_input *in, const char *what) {
    return stk_fail(STK_EFORMAT, "byte %llu: %s", (unsigned long long)(in->file_offset - (in->file_end - in->file_at)), what);
}

static int unpack_zstd(stk_input *in, uint8_t *to, size_t room, size_t *got) {
    ZSTD_inBuffer from = {in->file, in->file_end, in->file_at};
    ZSTD_outBuffer out = {to, room, 0};
    if (from.pos == from.size && !in->frame_open) {
        in->ended = true;
        return 0;
    }
    if (from.pos == from.size) return damaged(in, "the zstd stream is cut off");
    size_t left = ZSTD_decompressStream(in->zstd, &out, &from);
    if (ZSTD_isError(left)) return damaged(in, ZSTD_getErrorName(left));
    in->frame_open = left != 0;
    in->file_at = from.pos;
    *got = out.pos;
    return 0;
}

static int unpack_xz(stk_input *in, uint8_t *to, size_t room, size_t *got) {
    bool last = in->file_at == in->file_end;
    in->xz.next_in = in->file + in->file_at;
    in->xz.avail_in = in->file_end - in->file_at;
    in->xz.next_out = to;
    in->xz.avail_out = room;
    lzma_ret rc = lzma_code(&in->xz, last ? LZMA_FINISH : LZMA_RUN);
    in->file_at = in->file_end - in->xz.avail_in;
    *got = room - in->xz.avail_out;
    switch (rc) {
    case LZMA_OK: return 0;
    case LZMA_STREAM_END: in->ended = true; return 0;
    case LZMA_MEM_ERROR: return stk_fail(STK_ENOMEM, "out of memory for unpacking xz");
    case LZMA_MEMLIMIT_ERROR: return damaged(in, "the xz stream needs more than 128 MiB to unpack");
    case LZMA_BUF_ERROR: return damaged(in, "the xz stream is cut off");
    default: return damaged(in, "the xz stream is damaged");
    }
}

/* Moves what is left to the front and adds to it until it holds `want` bytes or the stream ends. */
static int fill(stk_input *in, size_t want) {
    if (in->end - in->at >= want) return 0;
    memmove(in->data, in->data + in->at, in->end - in->at);
    in->end -= in->at;
    in->at = 0;
    while (in->end < want && !in->ended) {
        size_t got = 0, room = BUFFER_BYTES - in->end;
        STK_TRY(fill_file(in));
        if (in->packing == PACKED_ZSTD) {
            STK_TRY(unpack_zstd(in, in->data + in->end, room, &got));
        } else if (in->packing == PACKED_XZ) {
            STK_TRY(unpack_xz(in, in->data + in->end, room, &got));
        } else {
            got = STK_MIN(room, in->file_end - in->file_at);
            memcpy(in->data + in->end, in->file + in->file_at, got);
            in->file_at += got;
            in->ended = got == 0;
        }
        in->end += got;
        in->offset += got;
    }
    return 0;
}

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static int start(stk_input *in) {
    static const uint8_t zstd_magic[4] = {0x28, 0xb5, 0x2f, 0xfd}, xz_magic[6] = {0xfd, '7', 'z', 'X', 'Z', 0};
    STK_TRY(fill_file(in));
    in->packing = PLAIN;
    if (in->file_end >= sizeof zstd_magic && memcmp(in->file, zstd_magic, sizeof zstd_magic) == 0) {
        in->packing = PACKED_ZSTD;
        if (!in->zstd) in->zstd = ZSTD_createDCtx();
        if (!in->zstd) return stk_fail(STK_ENOMEM, "out of memory for unpacking zstd");
        ZSTD_DCtx_reset(in->zstd, ZSTD_reset_session_only);
        ZSTD_DCtx_setParameter(in->zstd, ZSTD_d_windowLogMax, WINDOW_LOG);
        in->frame_open = true;
    } else if (in->file_end >= sizeof xz_magic && memcmp(in->file, xz_magic, sizeof xz_magic) == 0) {
        in->packing = PACKED_XZ;
        if (lzma_stream_decoder(&in->xz, XZ_MEMORY, LZMA_CONCATENATED) != LZMA_OK)
            return stk_fail(STK_ENOMEM, "out of memory for unpacking xz");
    }
    return 0;
}

static int open_file(stk_input *in, const char *path) {
    struct stat st;
    in->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0 || fstat(in->fd, &st) < 0) return stk_fail_errno(errno, "cannot open it");
    if (!S_ISREG(st.st_mode)) return stk_fail(STK_EUNSUPPORTED, "not a regular file, which every format but Stoker's own needs");
    in->total = (uint64_t)st.st_size;
    in->file = malloc(BUFFER_BYTES);
    in->data = malloc(BUFFER_BYTES);
    if (!in->file || !in->data) return stk_fail(STK_ENOMEM, "out of memory");
    return start(in);
}

int stk_input_open(stk_input **out, const char *path) {
    *out = NULL;
    stk_input *in = calloc(1, sizeof *in);
    if (!in) return stk_fail(STK_ENOMEM, "out of memory");
    in->fd = -1;
    in->xz = (lzma_stream)LZMA_STREAM_INIT;
    int rc = open_file(in, path);
    if (rc < 0) stk_input_close(&in);
    *out = in;
    return rc;
}

void stk_input_close(stk_input **input) {
    stk_input *in = *input;
    if (!in) return;
    if (in->fd >= 0) close(in->fd);
    ZSTD_freeDCtx(in->zstd);
    lzma_end(&in->xz);
    free(in->file);
    free(in->data);
    free(in->line);
    free(in);
    *input = NULL;
}

int stk_input_rewind(stk_input *in) {
    if (lseek(in->fd, 0, SEEK_SET) < 0) return stk_fail_errno(errno, "cannot go back to its start");
    in->file_at = in->file_end = in->at = in->end = 0;
    in->file_offset = in->offset = in->line_number = 0;
    in->ended = false;
    return start(in);
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------ */

int64_t stk_input_read(stk_input *in, void *out, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        STK_TRY(fill(in, 1));
        size_t n = STK_MIN(bytes - done, in->end - in->at);
        if (!n) break;
        memcpy((uint8_t *)out + done, in->data + in->at, n);
        in->at += n;
        done += n;
    }
    return (int64_t)done;
}

int64_t stk_input_peek(stk_input *in, const uint8_t **data) {
    STK_TRY(fill(in, STK_INPUT_PEEK_BYTES));
    *data = in->data + in->at;
    return (int64_t)(in->end - in->at);
}

int stk_input_byte(stk_input *in, int *byte) {
    if (in->at == in->end) STK_TRY(fill(in, 1));
    *byte = in->at == in->end ? -1 : in->data[in->at++];
    return 0;
}

static int grow_line(stk_input *in, size_t need) {
    if (need <= in->line_cap) return 0;
    size_t cap = STK_MAX(need, 2 * in->line_cap);
    char *line = realloc(in->line, cap);
    if (!line) return stk_fail(STK_ENOMEM, "out of memory for a line of %zu bytes", need);
    in->line = line;
    in->line_cap = cap;
    return 0;
}

int stk_input_line(stk_input *in, char **line, size_t *bytes) {
    size_t n = 0;
    in->line_number++;
    for (bool whole = false; !whole;) {
        STK_TRY(fill(in, 1));
        size_t here = in->end - in->at;
        if (!here && !n) return 0;
        if (!here) break;
        const uint8_t *from = in->data + in->at, *stop = memchr(from, '\n', here);
        whole = stop != NULL;
        if (whole) here = (size_t)(stop - from) + 1;
        if (n + here > STK_INPUT_LINE_BYTES)
            return stk_fail(STK_EFORMAT, "line %llu is longer than %d bytes", (unsigned long long)in->line_number,
                            STK_INPUT_LINE_BYTES);
        STK_TRY(grow_line(in, n + here + 1));
        memcpy(in->line + n, from, here);
        n += here;
        in->at += here;
    }
    while (n && (in->line[n - 1] == '\n' || in->line[n - 1] == '\r')) n--;
    in->line[n] = 0;
    if (memchr(in->line, 0, n)) return stk_fail(STK_EFORMAT, "line %llu has a 0 byte", (unsigned long long)in->line_number);
    *line = in->line;
    *bytes = n;
    return 1;
}

bool stk_input_is_packed(const stk_input *in) { return in->packing != PLAIN; }
uint64_t stk_input_offset(const stk_input *in) { return in->offset - (in->end - in->at); }
uint64_t stk_input_line_number(const stk_input *in) { return in->line_number; }

void stk_input_progress(const stk_input *in, uint64_t *done, uint64_t *total) {
    *done = in->file_offset;
    *total = in->total;
}
