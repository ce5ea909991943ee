/* cost_file: JSON in, checked field by field; JSON out, beside the file first; tables for models. */
#include "cost_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, MAX_BYTES = 1 << 20 };
static const double most_number = 1e18;

const enum stk_type stk_cost_formats[STK_COST_N_FORMAT] = {STK_TYPE_F32,  STK_TYPE_F16,  STK_TYPE_BF16, STK_TYPE_Q8_0,
                                                           STK_TYPE_Q4_0, STK_TYPE_Q4_K, STK_TYPE_Q5_K, STK_TYPE_Q6_K};

/* ---- In ---- */

static int get_object(const cJSON *from, const char *key, const cJSON **out) {
    *out = cJSON_GetObjectItemCaseSensitive(from, key);
    return cJSON_IsObject(*out) ? STK_OK : stk_fail(STK_EFORMAT, "no object \"%s\"", key);
}

static bool is_positive(const cJSON *item) {
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) && item->valuedouble > 0 && item->valuedouble <= most_number;
}

static int get_number(const cJSON *from, const char *key, double *out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!is_positive(item)) return stk_fail(STK_EFORMAT, "\"%s\" is missing or no positive number", key);
    *out = item->valuedouble;
    return STK_OK;
}

/* 0 where there is none. */
static int get_optional(const cJSON *from, const char *key, double *out) {
    *out = 0;
    return cJSON_HasObjectItem(from, key) ? get_number(from, key, out) : STK_OK;
}

static int get_list(const cJSON *from, const char *key, double out[STK_COST_POINTS]) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(from, key), *item;
    int n = 0;
    if (!cJSON_IsArray(list)) return stk_fail(STK_EFORMAT, "\"%s\" is missing or no list", key);
    cJSON_ArrayForEach(item, list) {
        if (n == STK_COST_POINTS || !is_positive(item))
            return stk_fail(STK_EFORMAT, "\"%s\" is no list of %d positive numbers (entry %d)", key, STK_COST_POINTS, n);
        out[n++] = item->valuedouble;
    }
    return n == STK_COST_POINTS ? STK_OK : stk_fail(STK_EFORMAT, "\"%s\" has %d numbers, expected %d", key, n, STK_COST_POINTS);
}

static int get_text(const cJSON *from, const char *key, char *out, size_t bytes) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= bytes)
        return stk_fail(STK_EFORMAT, "\"%s\" is missing or no text of less than %zu bytes", key, bytes);
    memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    return STK_OK;
}

static int get_format(const cJSON *from, stk_cost_format *out) {
    STK_TRY(get_list(from, "expert_ns_per_byte", out->expert_ns_per_byte));
    return get_number(from, "arrive_ns_per_byte", &out->arrive_ns_per_byte);
}

static int get_formats(const cJSON *root, stk_cost_file *f) {
    const cJSON *formats, *one;
    STK_TRY(get_object(root, "formats", &formats));
    for (int i = 0; i < STK_COST_N_FORMAT; i++) {
        const char *name = stk_type_info_get(stk_cost_formats[i])->name;
        STK_TRY(get_object(formats, name, &one));
        int rc = get_format(one, &f->formats[i]);
        if (rc < 0) return stk_fail_in(rc, "format %s", name);
    }
    return STK_OK;
}

static int get_model(const cJSON *root, stk_cost_file *f) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    double bytes;
    if (!model) return STK_OK;
    STK_TRY(get_object(root, "model", &model));
    STK_TRY(get_text(model, "name", f->model, sizeof f->model));
    STK_TRY(get_number(model, "file_bytes", &bytes));
    STK_TRY(get_format(model, &f->experts));
    STK_TRY(get_list(model, "dense_layer_ns", f->dense_layer_ns));
    STK_TRY(get_list(model, "dense_step_ns", f->dense_step_ns));
    STK_TRY(get_optional(model, "event_ns", &f->event_ns));
    STK_TRY(get_optional(model, "lookahead_ns", &f->lookahead_ns));
    STK_TRY(get_optional(model, "read_ns_per_byte", &f->read_ns_per_byte));
    f->model_bytes = (uint64_t)bytes;
    f->has_model = true;
    return STK_OK;
}

static int get_all(const cJSON *root, stk_cost_file *f) {
    const cJSON *limits, *drive;
    double version, n_threads;
    if (!cJSON_IsObject(root)) return stk_fail(STK_EFORMAT, "no JSON object");
    STK_TRY(get_number(root, "stoker_cost", &version));
    if (version != VERSION) return stk_fail(STK_EFORMAT, "version %g; this build reads %d: calibrate again", version, VERSION);
    STK_TRY(get_text(root, "machine", f->machine, sizeof f->machine));
    STK_TRY(get_text(root, "cpu", f->cpu, sizeof f->cpu));
    STK_TRY(get_number(root, "threads", &n_threads));
    if (n_threads > 65536) return stk_fail(STK_EFORMAT, "\"threads\" is %g", n_threads);
    f->n_threads = (uint32_t)n_threads;
    STK_TRY(get_object(root, "limits", &limits));
    STK_TRY(get_number(limits, "read_bytes_per_s", &f->read_bytes_per_s));
    STK_TRY(get_number(limits, "int8_ops_per_s", &f->int8_ops_per_s));
    STK_TRY(get_number(limits, "float_ops_per_s", &f->float_ops_per_s));
    STK_TRY(get_number(limits, "run_ns", &f->run_ns));
    STK_TRY(get_number(limits, "barrier_ns", &f->barrier_ns));
    STK_TRY(get_optional(limits, "wake_ns", &f->wake_ns));
    STK_TRY(get_object(root, "drive", &drive));
    STK_TRY(get_text(drive, "io", f->io, sizeof f->io));
    STK_TRY(get_number(drive, "bytes_per_s", &f->drive_bytes_per_s));
    STK_TRY(get_number(drive, "bytes_per_s_computing", &f->drive_bytes_per_s_computing));
    STK_TRY(get_number(drive, "compute_slowdown", &f->compute_slowdown));
    STK_TRY(get_number(drive, "latency_ns", &f->drive_latency_ns));
    STK_TRY(get_formats(root, f));
    return get_model(root, f);
}

/* The whole file, 0-terminated; *out is the caller's to free. */
static int read_all(const char *path, char **out, size_t *bytes) {
    *out = NULL;
    FILE *file = fopen(path, "re");
    if (!file) return stk_fail_errno(errno, "cost file %s", path);
    char *text = malloc(MAX_BYTES + 1);
    size_t n = text ? fread(text, 1, MAX_BYTES + 1, file) : 0;
    int error = ferror(file) ? (errno ? errno : EIO) : 0;
    fclose(file);
    int rc = STK_OK;
    if (!text)
        rc = stk_fail(STK_ENOMEM, "out of memory");
    else if (error)
        rc = stk_fail_errno(error, "cost file %s", path);
    else if (n > MAX_BYTES)
        rc = stk_fail(STK_EFORMAT, "cost file %s: more than %d bytes, that is none", path, MAX_BYTES);
    if (rc < 0) {
        free(text);
        return rc;
    }
    *out = text;
    *bytes = n;
    return STK_OK;
}

int stk_cost_file_probe(const char *path, bool *is_one) {
    char head[64];
    FILE *file = fopen(path, "re");
    if (!file) return stk_fail_errno(errno, "cost file %s", path);
    size_t n = fread(head, 1, sizeof head - 1, file);
    int error = ferror(file) ? (errno ? errno : EIO) : 0;
    fclose(file);
    if (error) return stk_fail_errno(error, "cost file %s", path);
    head[n] = 0;
    *is_one = head[strspn(head, " \t\r\n")] == '{';
    return STK_OK;
}

int stk_cost_file_load(const char *path, stk_cost_file *out) {
    char *text;
    size_t bytes = 0;
    memset(out, 0, sizeof *out);
    STK_TRY(read_all(path, &text, &bytes));
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    free(text);
    int rc = root ? get_all(root, out) : stk_fail(STK_EFORMAT, "it cannot be parsed as JSON");
    cJSON_Delete(root);
    return rc < 0 ? stk_fail_in(rc, "cost file %s", path) : STK_OK;
}

int stk_cost_check(const char *path) {
    if (!path) return stk_fail(STK_EINVAL, "stk_cost_check: an argument is NULL");
    stk_cost_file *file = malloc(sizeof *file);
    int rc = file ? stk_cost_file_load(path, file) : stk_fail(STK_ENOMEM, "out of memory");
    free(file);
    return rc;
}

/* ---- Out ---- */

static void add_format(cJSON *to, const stk_cost_format *f) {
    cJSON_AddItemToObject(to, "expert_ns_per_byte", cJSON_CreateDoubleArray(f->expert_ns_per_byte, STK_COST_POINTS));
    cJSON_AddNumberToObject(to, "arrive_ns_per_byte", f->arrive_ns_per_byte);
}

static void add_optional(cJSON *to, const char *key, double value) {
    if (value > 0) cJSON_AddNumberToObject(to, key, value);
}

static char *print_all(const stk_cost_file *f) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "stoker_cost", VERSION);
    cJSON_AddStringToObject(root, "machine", f->machine);
    cJSON_AddStringToObject(root, "cpu", f->cpu);
    cJSON_AddNumberToObject(root, "threads", f->n_threads);
    cJSON *limits = cJSON_AddObjectToObject(root, "limits"), *drive = cJSON_AddObjectToObject(root, "drive");
    cJSON_AddNumberToObject(limits, "read_bytes_per_s", f->read_bytes_per_s);
    cJSON_AddNumberToObject(limits, "int8_ops_per_s", f->int8_ops_per_s);
    cJSON_AddNumberToObject(limits, "float_ops_per_s", f->float_ops_per_s);
    cJSON_AddNumberToObject(limits, "run_ns", f->run_ns);
    cJSON_AddNumberToObject(limits, "barrier_ns", f->barrier_ns);
    add_optional(limits, "wake_ns", f->wake_ns);
    cJSON_AddStringToObject(drive, "io", f->io);
    cJSON_AddNumberToObject(drive, "bytes_per_s", f->drive_bytes_per_s);
    cJSON_AddNumberToObject(drive, "bytes_per_s_computing", f->drive_bytes_per_s_computing);
    cJSON_AddNumberToObject(drive, "compute_slowdown", f->compute_slowdown);
    cJSON_AddNumberToObject(drive, "latency_ns", f->drive_latency_ns);
    cJSON *formats = cJSON_AddObjectToObject(root, "formats");
    for (int i = 0; i < STK_COST_N_FORMAT; i++)
        add_format(cJSON_AddObjectToObject(formats, stk_type_info_get(stk_cost_formats[i])->name), &f->formats[i]);
    if (f->has_model) {
        cJSON *model = cJSON_AddObjectToObject(root, "model");
        cJSON_AddStringToObject(model, "name", f->model);
        cJSON_AddNumberToObject(model, "file_bytes", (double)f->model_bytes);
        add_format(model, &f->experts);
        cJSON_AddItemToObject(model, "dense_layer_ns", cJSON_CreateDoubleArray(f->dense_layer_ns, STK_COST_POINTS));
        cJSON_AddItemToObject(model, "dense_step_ns", cJSON_CreateDoubleArray(f->dense_step_ns, STK_COST_POINTS));
        add_optional(model, "event_ns", f->event_ns);
        add_optional(model, "lookahead_ns", f->lookahead_ns);
        add_optional(model, "read_ns_per_byte", f->read_ns_per_byte);
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}

/* Writes all, to the disk as well: a name must never stand for a file that is not there yet. */
static int write_text(int fd, const char *text) {
    for (size_t bytes = strlen(text); bytes > 0;) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        text += n;
        bytes -= (size_t)n;
    }
    return fchmod(fd, 0644) < 0 || fsync(fd) < 0 ? errno : 0;
}

int stk_cost_file_save(const char *path, const stk_cost_file *file) {
    char *text = print_all(file), *name = NULL;
    int rc = STK_OK;
    if (!text || asprintf(&name, "%s.XXXXXX", path) < 0) {
        cJSON_free(text);
        return stk_fail(STK_ENOMEM, "out of memory");
    }
    int fd = mkstemp(name), error = fd < 0 ? errno : write_text(fd, text);
    if (fd >= 0 && close(fd) < 0 && !error) error = errno;
    if (!error && rename(name, path) < 0) error = errno;
    if (error) {
        if (fd >= 0) unlink(name);
        rc = stk_fail_errno(error, "cost file %s", path);
    }
    free(name);
    cJSON_free(text);
    return rc;
}

/* ---- Tables ---- */

static const stk_cost_format *format_of(const stk_cost_file *f, enum stk_type type) {
    for (int i = 0; i < STK_COST_N_FORMAT; i++)
        if (stk_cost_formats[i] == type) return &f->formats[i];
    return &f->formats[0];
}

/* Adds `share` of a format's figures. */
static void add_share(stk_cost *out, const stk_cost_format *f, double share) {
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) out->expert_ns_per_byte[i] += share * f->expert_ns_per_byte[i];
    out->arrive_ns_per_byte += share * f->arrive_ns_per_byte;
}

static void mix_experts(const stk_cost_file *f, const stk_catalogue *cat, stk_cost *out) {
    double total = 0;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        total += (double)stk_catalogue_class(cat, c)->payload_bytes * stk_catalogue_class(cat, c)->n_expert;
    for (uint32_t c = 0; c < stk_catalogue_n_class(cat); c++)
        for (uint32_t p = 0; p < STK_N_PART; p++) {
            const stk_class *cls = stk_catalogue_class(cat, c);
            add_share(out, format_of(f, cls->part[p].type), (double)cls->part[p].file_bytes * cls->n_expert / total);
        }
}

static double product_ns(const stk_cost_file *f, const stk_weight *w, uint32_t point) {
    return w->n_rows ? (double)w->bytes * format_of(f, w->type)->expert_ns_per_byte[point] : 0;
}

/* A layer of the dense part: its products, and the meetings around them. Attention itself depends on the context and is left to
 * what the run corrects. */
static void estimate_dense(const stk_cost_file *f, const stk_model *model, stk_cost *out) {
    enum { JOBS_OF_LAYER = 3, BARRIERS_OF_LAYER = 8 };
    for (uint32_t i = 0; i < STK_COST_POINTS; i++) {
        double sum = 0;
        for (uint32_t l = 0; l < model->hp.n_layer; l++) {
            const stk_layer *w = &model->layers[l];
            const stk_weight *all[] = {&w->attn_q, &w->attn_k, &w->attn_v, &w->attn_output, &w->router};
            for (size_t k = 0; k < STK_ARRAY_LEN(all); k++) sum += product_ns(f, all[k], i);
        }
        out->dense_layer_ns[i] = sum / model->hp.n_layer + JOBS_OF_LAYER * f->run_ns + BARRIERS_OF_LAYER * f->barrier_ns;
        out->dense_step_ns[i] = product_ns(f, &model->output, 0) + 2 * f->run_ns;
    }
}

static const double least_read_ns = 1e-6; /* a byte; a table holds positive numbers */

static bool is_model_of(const stk_cost_file *f, const stk_model *model) {
    stk_model_info info = {.struct_bytes = sizeof info};
    return f->has_model && (!model || (stk_model_get_info(model, &info) >= 0 && info.file_bytes == f->model_bytes &&
                                       strncmp(info.name, f->model, sizeof f->model - 1) == 0));
}

void stk_cost_file_table(const stk_cost_file *f, const stk_model *model, stk_cost *out) {
    stk_cost_default(out);
    memset(out->expert_ns_per_byte, 0, sizeof out->expert_ns_per_byte);
    out->arrive_ns_per_byte = 0;
    out->nvme_bytes_per_ns = f->drive_bytes_per_s * 1e-9;
    out->nvme_latency_ns = f->drive_latency_ns;
    if (f->wake_ns > 0) out->wake_ns = f->wake_ns;
    out->read_ns_per_byte = STK_MAX((f->compute_slowdown - 1) / (f->drive_bytes_per_s_computing * 1e-9), least_read_ns);
    if (is_model_of(f, model)) {
        add_share(out, &f->experts, 1);
        if (f->event_ns > 0) out->event_ns = f->event_ns;
        if (f->lookahead_ns > 0) out->lookahead_ns = f->lookahead_ns;
        if (f->read_ns_per_byte > 0) out->read_ns_per_byte = f->read_ns_per_byte;
        memcpy(out->dense_layer_ns, f->dense_layer_ns, sizeof out->dense_layer_ns);
        memcpy(out->dense_step_ns, f->dense_step_ns, sizeof out->dense_step_ns);
        return;
    }
    if (model && stk_catalogue_n_class(model->experts))
        mix_experts(f, model->experts, out);
    else
        add_share(out, format_of(f, STK_TYPE_Q4_K), 1);
    if (model) estimate_dense(f, model, out);
}
