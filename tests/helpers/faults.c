// Loaded with LD_PRELOAD: lets one write to a file, fsync or rename of the process fail with an I/O error.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long seen = 0, failing = 0;

// From now on count calls; the call of this number fails (0: none).
void arm(long number) { seen = 0, failing = number; }

long calls(void) { return seen; }

static int fails(void) {
    if (++seen != failing) return 0;
    errno = EIO;
    return 1;
}

static int is_file(int descriptor) {
    struct stat found;
    return fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// A failing write has written the first half.
ssize_t write(int descriptor, const void *content, size_t size) {
    if (!is_file(descriptor) || !fails()) return REAL(write)(descriptor, content, size);
    REAL(write)(descriptor, content, size / 2);
    return errno = EIO, -1;
}

ssize_t pwrite64(int descriptor, const void *content, size_t size, off64_t place) {
    if (!is_file(descriptor) || !fails()) return REAL(pwrite64)(descriptor, content, size, place);
    REAL(pwrite64)(descriptor, content, size / 2, place);
    return errno = EIO, -1;
}

ssize_t pwrite(int descriptor, const void *content, size_t size, off_t place) {
    return pwrite64(descriptor, content, size, place);
}

int fsync(int descriptor) { return fails() ? -1 : REAL(fsync)(descriptor); }

int fdatasync(int descriptor) { return fails() ? -1 : REAL(fdatasync)(descriptor); }

int rename(const char *from, const char *to) { return fails() ? -1 : REAL(rename)(from, to); }

int renameat2(int old, const char *from, int new, const char *to, unsigned int flags) {
    return fails() ? -1 : REAL(renameat2)(old, from, new, to, flags);
}
