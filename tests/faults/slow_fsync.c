/* Makes each fsync and fdatasync of a process take RELIVE_FSYNC_MS longer, as a slow disk does.
 * It is loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int delayed(const char *name, int file) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *text = getenv("RELIVE_FSYNC_MS");
    long ms = text == NULL ? 0 : atol(text);
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) {
    }
    return sync(file);
}

int fsync(int file) { return delayed("fsync", file); }

int fdatasync(int file) { return delayed("fdatasync", file); }
