/* Faults in the calls that change files: loaded with LD_PRELOAD, asleep until `fault_arm`.
 *
 * Counts the calls of some classes on files below a folder whose path holds a word, from 1, and does
 * something instead of, or before, those from `first` to `last`. What runs in other libraries is met
 * as well, as long as it goes through libc: SQLite and CPython do.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, RENAME = 8, UNLINK = 16, CREATE = 32, ALLOCATE = 64 };
enum { NOTHING, KILL, FAIL, SHORT, HOLD, TEAR };

static atomic_int armed;
static char folder[PATH_MAX], word[256];
static unsigned classes;
static long first_call, last_call;
static int action, code;
static char gate[PATH_MAX];
static int is_quick;
static atomic_long counted, met;

void fault_arm(const char *in_folder, const char *with_word, unsigned of_classes, long from, long to,
               int what, int with_errno, const char *at_gate, int without_syncs) {
    armed = 0;
    snprintf(folder, sizeof folder, "%s", in_folder);
    snprintf(word, sizeof word, "%s", with_word);
    classes = of_classes;
    first_call = from;
    last_call = to;
    action = what;
    code = with_errno;
    snprintf(gate, sizeof gate, "%s", at_gate);
    is_quick = without_syncs;
    counted = 0;
    met = 0;
    armed = 1;
}

void fault_disarm(void) { armed = 0; }
long fault_counted(void) { return counted; }
long fault_met(void) { return met; }

static int concerns(unsigned class, const char *path) {
    return (classes & class) && !strncmp(path, folder, strlen(folder)) && strstr(path, word);
}

/* Wait for as long as the gate is there; a second file beside it says that somebody waits. */
static void held(void) {
    char waiting[PATH_MAX + 8];
    snprintf(waiting, sizeof waiting, "%s.held", gate);
    while (!access(gate, F_OK)) {
        int fd = creat(waiting, 0600);
        if (fd >= 0) close(fd);
        struct timespec moment = {0, 1000000};
        nanosleep(&moment, NULL);
    }
}

/* What is to be done at this call. */
static int decided(unsigned class, const char *path) {
    if (!armed || !concerns(class, path)) return NOTHING;
    long number = ++counted;
    if (number < first_call || number > last_call) return NOTHING;
    met++;
    if (action == KILL) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    if (action == HOLD) {
        held();
        return NOTHING;
    }
    /* Half of a write that was asked for; every other call just fails. */
    return (action == SHORT || action == TEAR) && class != WRITE ? NOTHING : action;
}

static int decided_fd(unsigned class, int fd) {
    if (!armed || !(classes & class)) return NOTHING;
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0) return NOTHING;
    path[length] = 0;
    return decided(class, path);
}

static int decided_at(unsigned class, int at, const char *path) {
    if (!armed || !(classes & class)) return NOTHING;
    if (path[0] == '/' || at == AT_FDCWD) return decided(class, path);
    char name[64], whole[2 * PATH_MAX];
    snprintf(name, sizeof name, "/proc/self/fd/%d", at);
    ssize_t length = readlink(name, whole, PATH_MAX);
    if (length < 0) return NOTHING;
    snprintf(whole + length, sizeof whole - length, "/%s", path);
    return decided(class, whole);
}

#define NEXT(name) \
    static typeof(name) *next; \
    if (!next) next = (typeof(name) *)dlsym(RTLD_NEXT, #name)
#define FAILED(class_decided) \
    if ((class_decided) == FAIL) return errno = code, -1

static size_t half(int what, size_t size) { return what == SHORT || what == TEAR ? size / 2 : size; }
static void tear(int what) {
    if (what != TEAR) return;
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(write);
    int what = decided_fd(WRITE, fd);
    FAILED(what);
    ssize_t done = next(fd, data, half(what, size));
    tear(what);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    NEXT(pwrite);
    int what = decided_fd(WRITE, fd);
    FAILED(what);
    ssize_t done = next(fd, data, half(what, size), offset);
    tear(what);
    return done;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    NEXT(pwrite64);
    int what = decided_fd(WRITE, fd);
    FAILED(what);
    ssize_t done = next(fd, data, half(what, size), offset);
    tear(what);
    return done;
}
int fsync(int fd) {
    NEXT(fsync);
    FAILED(decided_fd(SYNC, fd));
    return armed && is_quick ? 0 : next(fd);
}
int fdatasync(int fd) {
    NEXT(fdatasync);
    FAILED(decided_fd(SYNC, fd));
    return armed && is_quick ? 0 : next(fd);
}
int ftruncate(int fd, off_t size) {
    NEXT(ftruncate);
    FAILED(decided_fd(TRUNCATE, fd));
    return next(fd, size);
}
int ftruncate64(int fd, off64_t size) {
    NEXT(ftruncate64);
    FAILED(decided_fd(TRUNCATE, fd));
    return next(fd, size);
}
int posix_fallocate(int fd, off_t offset, off_t size) {
    NEXT(posix_fallocate);
    return decided_fd(ALLOCATE, fd) == FAIL ? code : next(fd, offset, size);
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    NEXT(posix_fallocate64);
    return decided_fd(ALLOCATE, fd) == FAIL ? code : next(fd, offset, size);
}
int rename(const char *from, const char *to) {
    NEXT(rename);
    FAILED(decided(RENAME, to));
    return next(from, to);
}
int renameat(int from_at, const char *from, int to_at, const char *to) {
    NEXT(renameat);
    FAILED(decided_at(RENAME, to_at, to));
    return next(from_at, from, to_at, to);
}
int unlink(const char *path) {
    NEXT(unlink);
    FAILED(decided(UNLINK, path));
    return next(path);
}
int unlinkat(int at, const char *path, int flags) {
    NEXT(unlinkat);
    FAILED(decided_at(UNLINK, at, path));
    return next(at, path, flags);
}

#define OPENING(mode) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }
static int creates(int flags) { return flags & O_CREAT ? CREATE : 0; }

int open(const char *path, int flags, ...) {
    NEXT(open);
    OPENING(mode)
    FAILED(decided(creates(flags), path));
    return next(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    NEXT(open64);
    OPENING(mode)
    FAILED(decided(creates(flags), path));
    return next(path, flags, mode);
}
int openat(int at, const char *path, int flags, ...) {
    NEXT(openat);
    OPENING(mode)
    FAILED(decided_at(creates(flags), at, path));
    return next(at, path, flags, mode);
}
int openat64(int at, const char *path, int flags, ...) {
    NEXT(openat64);
    OPENING(mode)
    FAILED(decided_at(creates(flags), at, path));
    return next(at, path, flags, mode);
}

/* The wall clock, as far from the real one as eight bytes of a file say; the monotonic one is true. */
static volatile int64_t *offset_s;

int fault_clock(const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) return -1;
    void *map = mmap(NULL, sizeof *offset_s, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return -1;
    offset_s = map;
    return 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    int failed = next(clock, now);
    if (!failed && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset_s;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
