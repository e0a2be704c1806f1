// Loaded with LD_PRELOAD: lets one write to a file, fsync or rename of the process fail with an I/O error, or one large
// allocation, or ends the process instead and has kept a copy of all that was synced.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ENDED 71
#define LARGE (1 << 15)

static long seen = 0, failing = 0;
static char kept[4096] = "";
// What is counted: writes, fsyncs and renames; only fsyncs and renames; large allocations.
static enum { CALLS, SYNCS, ALLOCATIONS } counted = CALLS;

// From now on count; the call of this number fails (0: none).
void arm(long number, int what) { seen = 0, failing = number, counted = what; }

long calls(void) { return seen; }

// From now on keep what is synced in a folder, and end the process where a call would fail.
void keep(const char *folder) { snprintf(kept, sizeof kept, "%s", folder); }

static int fails(void) {
    if (counted == ALLOCATIONS) return 0;
    if (++seen != failing) return 0;
    if (*kept) _exit(ENDED);
    errno = EIO;
    return 1;
}

// Whether a write counts.
static int is_file(int descriptor) {
    struct stat found;
    return counted == CALLS && fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode);
}

// Keep the content of a file, or the names in a folder with their inodes, under the number of its inode. The descriptor
// stays open so that no other file gets that number.
static int synced(int descriptor, int result) {
    struct stat found;
    char path[4200];
    if (result || !*kept || fstat(descriptor, &found)) return result;
    snprintf(path, sizeof path, "%s/%lu", kept, (unsigned long)found.st_ino);
    FILE *copy = fopen(path, "w");
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int source = open(path, O_RDONLY);
    if (S_ISDIR(found.st_mode)) {
        DIR *folder = fdopendir(source);
        for (struct dirent *entry; (entry = readdir(folder));)
            fprintf(copy, "%lu %d %s\n", (unsigned long)entry->d_ino, entry->d_type == DT_DIR, entry->d_name);
    } else {
        char buffer[1 << 16];
        for (ssize_t size; (size = read(source, buffer, sizeof buffer)) > 0;) fwrite(buffer, 1, size, copy);
    }
    fclose(copy);
    return result;
}

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

int fsync(int descriptor) { return fails() ? -1 : synced(descriptor, REAL(fsync)(descriptor)); }

int fdatasync(int descriptor) { return fails() ? -1 : synced(descriptor, REAL(fdatasync)(descriptor)); }

int rename(const char *from, const char *to) { return fails() ? -1 : REAL(rename)(from, to); }

int renameat2(int old, const char *from, int new, const char *to, unsigned int flags) {
    return fails() ? -1 : REAL(renameat2)(old, from, new, to, flags);
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static int lacks(size_t size) {
    if (counted != ALLOCATIONS || size < LARGE || ++seen != failing) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return lacks(size) ? NULL : __libc_malloc(size); }

void *calloc(size_t number, size_t size) { return lacks(number * size) ? NULL : __libc_calloc(number, size); }

void *realloc(void *place, size_t size) { return lacks(size) ? NULL : __libc_realloc(place, size); }

void *aligned_alloc(size_t step, size_t size) { return lacks(size) ? NULL : __libc_memalign(step, size); }

int posix_memalign(void **place, size_t step, size_t size) {
    return lacks(size) || !(*place = __libc_memalign(step, size)) ? ENOMEM : 0;
}
