// Loaded with LD_PRELOAD: lets one write to a file, fsync or rename of the process fail with an I/O error, or one large
// allocation, or ends the process instead; and records all that changes or syncs a folder, for tests/helpers/disk.py.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ENDED 71
#define LARGE (1 << 15)

static long seen = 0, failing = 0;
static int ends = 0, journal = -1;
static char watched[PATH_MAX];
// What is counted: writes, fsyncs and renames; large allocations.
static enum { CALLS, ALLOCATIONS } counted = CALLS;

// From now on count; the call of this number fails (0: none), or the process ends there.
void arm(long number, int what, int ending) { seen = 0, failing = number, counted = what, ends = ending; }

long calls(void) { return seen; }

// From now on append what happens in a folder to a file.
void record(const char *folder, const char *file) {
    snprintf(watched, sizeof watched, "%s/", folder);
    journal = open(file, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
}

// An event is a line with its kind, a number, the size of its data, and up to two names; then the data.
static void event(char kind, const char *from, const char *to, long number, const void *data, size_t size) {
    char line[2 * PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%c\t%ld\t%zu\t%s\t%s\n", kind, number, size, from, to);
    struct iovec parts[2] = {{line, length}, {(void *)data, size}};
    if (REAL(writev)(journal, parts, 2) != (ssize_t)(length + size)) abort();
}

// Record a remark of the test.
void mark(char kind, const char *text) {
    if (journal >= 0) event(kind, text, "", 0, "", 0);
}

static int is_watched(const char *path) { return strncmp(path, watched, strlen(watched)) == 0; }

// Whether a path is in the folder; `full` gets it from its root.
static int placed(int folder, const char *path, char *full) {
    char link[64], home[PATH_MAX] = "";
    if (journal < 0) return 0;
    if (*path != '/') {
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        if (readlink(link, home, sizeof home - 2) < 0) return 0;
        strcat(home, "/");
    }
    snprintf(full, PATH_MAX, "%s%s", home, path);
    return is_watched(full);
}

// Whether a descriptor is of a file in the folder that still has a name.
static int named(int descriptor, char *full, struct stat *found) {
    char link[64];
    if (journal < 0 || fstat(descriptor, found) || !found->st_nlink) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, full, PATH_MAX - 2);
    if (length < 0) return 0;
    // The folder itself has no slash at its end.
    strcpy(full + length, S_ISDIR(found->st_mode) ? "/" : "");
    return is_watched(full);
}

// Record what a file holds at a place: what was written there ('W'), or the whole file ('V').
static ssize_t holds(char kind, int descriptor, off64_t place, ssize_t size) {
    char full[PATH_MAX], link[64];
    struct stat found;
    int kept = errno;
    if (size > 0 && named(descriptor, full, &found) && S_ISREG(found.st_mode)) {
        if (kind == 'V') size = found.st_size;
        char *data = malloc(size);
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        int source = REAL(open64)(link, O_RDONLY | O_CLOEXEC);
        if (pread64(source, data, size, place) != size) abort();
        event(kind, full, "", place, data, size);
        close(source);
        free(data);
    }
    errno = kept;
    return size;
}

static ssize_t wrote(int descriptor, off64_t place, ssize_t size) { return holds('W', descriptor, place, size); }

static ssize_t wrote_there(int descriptor, ssize_t size) {
    return wrote(descriptor, size > 0 ? lseek64(descriptor, 0, SEEK_CUR) - size : 0, size);
}

// Record a change of a file's size ('T'), or a sync ('S').
static int told(char kind, int descriptor, int result) {
    char full[PATH_MAX];
    struct stat found;
    int kept = errno;
    if (!result && named(descriptor, full, &found)) event(kind, full, "", found.st_size, "", 0);
    errno = kept;
    return result;
}

// Record a change of names.
static int moved(char kind, int old, const char *from, int new, const char *to, int result) {
    char first[PATH_MAX], second[PATH_MAX] = "";
    int kept = errno;
    if (!result && placed(old, from, first) && (!to || placed(new, to, second))) event(kind, first, second, 0, "", 0);
    errno = kept;
    return result;
}

static int opened(int folder, const char *path, int flags, int descriptor) {
    if (descriptor >= 0 && flags & O_CREAT) moved('C', folder, path, 0, NULL, 0);
    if (descriptor >= 0 && flags & O_TRUNC) told('T', descriptor, 0);
    return descriptor;
}

static int fails(void) {
    if (counted == ALLOCATIONS) return 0;
    if (++seen != failing) return 0;
    if (ends) _exit(ENDED);
    errno = EIO;
    return 1;
}

// Whether a write counts.
static int is_file(int descriptor) {
    struct stat found;
    return counted == CALLS && fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode);
}

// A failing write has written the first half.
ssize_t write(int descriptor, const void *content, size_t size) {
    if (!is_file(descriptor) || !fails()) return wrote_there(descriptor, REAL(write)(descriptor, content, size));
    wrote_there(descriptor, REAL(write)(descriptor, content, size / 2));
    return errno = EIO, -1;
}

ssize_t pwrite64(int descriptor, const void *content, size_t size, off64_t place) {
    if (!is_file(descriptor) || !fails())
        return wrote(descriptor, place, REAL(pwrite64)(descriptor, content, size, place));
    wrote(descriptor, place, REAL(pwrite64)(descriptor, content, size / 2, place));
    return errno = EIO, -1;
}

ssize_t pwrite(int descriptor, const void *content, size_t size, off_t place) {
    return pwrite64(descriptor, content, size, place);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return wrote_there(descriptor, REAL(writev)(descriptor, parts, count));
}

ssize_t sendfile64(int target, int source, off64_t *place, size_t size) {
    return wrote_there(target, REAL(sendfile64)(target, source, place, size));
}

ssize_t sendfile(int target, int source, off_t *place, size_t size) { return sendfile64(target, source, place, size); }

ssize_t copy_file_range(int source, off64_t *from, int target, off64_t *to, size_t size, unsigned int flags) {
    ssize_t done = REAL(copy_file_range)(source, from, target, to, size, flags);
    return to ? wrote(target, *to - done, done) : wrote_there(target, done);
}

// FAISS writes so; the C library itself then calls no function that is replaced here.
size_t fwrite(const void *content, size_t size, size_t count, FILE *file) {
    if (journal < 0) return REAL(fwrite)(content, size, count, file);
    off64_t place = ftello64(file);
    size_t done = REAL(fwrite)(content, size, count, file);
    if (place < 0 || fflush(file)) return done;
    return wrote(fileno(file), place, done * size), done;
}

int ftruncate64(int file, off64_t size) { return told('T', file, REAL(ftruncate64)(file, size)); }

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int posix_fallocate64(int file, off64_t place, off64_t size) {
    return told('T', file, REAL(posix_fallocate64)(file, place, size));
}

int posix_fallocate(int file, off_t place, off_t size) { return posix_fallocate64(file, place, size); }

#define MODE(flags)                                                                                                    \
    va_list more;                                                                                                      \
    va_start(more, flags);                                                                                             \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                            \
    va_end(more)

int open64(const char *path, int flags, ...) {
    MODE(flags);
    return opened(AT_FDCWD, path, flags, REAL(open64)(path, flags, mode));
}

int open(const char *path, int flags, ...) {
    MODE(flags);
    return open64(path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return opened(folder, path, flags, REAL(openat64)(folder, path, flags, mode));
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return openat64(folder, path, flags, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    FILE *file = REAL(fopen64)(path, mode);
    if (file) opened(AT_FDCWD, path, *mode == 'w' ? O_CREAT | O_TRUNC : *mode == 'a' ? O_CREAT : 0, fileno(file));
    return file;
}

FILE *fopen(const char *path, const char *mode) { return fopen64(path, mode); }

// Rust's libraries make system calls themselves: what those have written is seen here.
int fsync(int descriptor) {
    if (fails()) return -1;
    holds('V', descriptor, 0, 1);
    return told('S', descriptor, REAL(fsync)(descriptor));
}

// SQLite syncs so.

int fdatasync(int descriptor) { return fails() ? -1 : told('S', descriptor, REAL(fdatasync)(descriptor)); }

int renameat2(int old, const char *from, int new, const char *to, unsigned int flags) {
    if (fails()) return -1;
    return moved(flags & RENAME_EXCHANGE ? 'X' : 'R', old, from, new, to, REAL(renameat2)(old, from, new, to, flags));
}

int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int renameat(int old, const char *from, int new, const char *to) { return renameat2(old, from, new, to, 0); }

int linkat(int old, const char *from, int new, const char *to, int flags) {
    return moved('L', old, from, new, to, REAL(linkat)(old, from, new, to, flags));
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int folder, const char *path, int flags) {
    return moved('U', folder, path, 0, NULL, REAL(unlinkat)(folder, path, flags));
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    return moved('D', folder, path, 0, NULL, REAL(mkdirat)(folder, path, mode));
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

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
