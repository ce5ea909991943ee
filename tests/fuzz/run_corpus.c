/* Runs a fuzz target over the files of a folder, so that a corpus is an ordinary test of every build: run_corpus FOLDER */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    uint8_t *data = NULL;
    size_t n = 0, cap = 0;
    do {
        cap = cap ? 2 * cap : 4096;
        data = realloc(data, cap);
        if (!data) abort();
        n += fread(data + n, 1, cap - n, f);
    } while (n == cap);
    fclose(f);
    printf("%s: %zu bytes\n", path, n);
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 0;
}

int main(int argc, char **argv) {
    DIR *d = argc == 2 ? opendir(argv[1]) : NULL;
    if (!d) {
        fprintf(stderr, "run_corpus: no folder %s\n", argc == 2 ? argv[1] : "given");
        return 1;
    }
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (run_file(path) < 0) {
            perror(path);
            return 1;
        }
        n++;
    }
    closedir(d);
    return n > 0 ? 0 : 1;
}
