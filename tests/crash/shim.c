/* Records what a program asks of the files under one folder, so that power cuts can be replayed afterwards.
 *
 * Killing a process proves nothing about durability: the page cache survives it. So this library (LD_PRELOAD) writes
 * down, in order, every write, truncation, sync and change of a name under CRASH_SHIM_ROOT, with the data, into
 * CRASH_SHIM_LOG. replay.py then builds the folder as a power cut could have left it at any point of that record.
 *
 * - Files and folders are told apart by inode, not by path or descriptor: renames, dup, fork and inherited descriptors
 *   then need no bookkeeping. A number is reused only after a create was recorded, which starts a new file.
 * - An operation and its record happen under one lock shared by all processes (a robust mutex in <log>.ctl), so the
 *   order of the record is the order of the effects, and a SIGKILL in between leaves no lock behind.
 * - The log is opened for each record: a program that closes every descriptor cannot lose it.
 *   A process killed between an operation and its record leaves that one operation unrecorded.
 * - Only what succeeded is recorded. What the record cannot express (a writable shared mapping, copy_file_range,
 *   sendfile or splice into a watched file, an exchange of names) is recorded as such, and the replay refuses it.
 * - System calls that bypass the C library, and stdio inside it, are not seen. The replay proves that nothing was
 *   missed by comparing its own result with the folder that the program left.
 *
 * Record, little-endian: u32 magic, u32 length of all, u64 number, u32 kind, i32 pid, u64 inode, u64 folder,
 * u64 second folder, i64 offset or size, u32 bytes of name, of second name, of data; then these three.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind {
    K_WRITE = 1, K_WRITE_SYNCED, K_TRUNCATE, K_GROW, K_SYNC, K_SYNC_ALL, K_CREATE, K_MKDIR, K_SYMLINK,
    K_LINK, K_RENAME, K_UNLINK, K_MARK, K_UNSUPPORTED
};

struct control {
    _Atomic uint32_t state; /* 0 untouched, 1 being set up, 2 ready */
    uint64_t next, length; /* of whole records: what a killed process left half written is written over */
    pthread_mutex_t mutex;
};

struct record {
    uint32_t magic, length;
    uint64_t number;
    uint32_t kind;
    int32_t pid;
    uint64_t inode, folder, folder2;
    int64_t offset;
    uint32_t name_bytes, name2_bytes, data_bytes;
} __attribute__((packed));

static char root[PATH_MAX], log_path[PATH_MAX];
static size_t root_length;
static dev_t root_device;
static struct control *control;

static void die(const char *what) {
    char text[256];
    int n = snprintf(text, sizeof text, "crash shim: %s: errno %d\n", what, errno);
    syscall(SYS_write, 2, text, n);
    abort();
}

__attribute__((constructor)) static void start(void) {
    const char *folder = getenv("CRASH_SHIM_ROOT"), *log = getenv("CRASH_SHIM_LOG");
    if (!folder || !log) return;
    char name[PATH_MAX + 8];
    if (!realpath(folder, root)) die("CRASH_SHIM_ROOT");
    root_length = strlen(root);
    struct stat info;
    if (stat(root, &info)) die("CRASH_SHIM_ROOT");
    root_device = info.st_dev;
    snprintf(log_path, sizeof log_path, "%s", log);
    snprintf(name, sizeof name, "%s.ctl", log);
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_ftruncate, fd, sizeof(struct control))) die("control file");
    void *at = (void *)syscall(SYS_mmap, NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die("control file");
    syscall(SYS_close, fd);
    struct control *shared = at;
    uint32_t untouched = 0;
    if (atomic_compare_exchange_strong(&shared->state, &untouched, 1)) {
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&shared->mutex, &how);
        atomic_store(&shared->state, 2);
    }
    while (atomic_load(&shared->state) != 2) usleep(100);
    control = shared;
}

static void lock(void) {
    int said = pthread_mutex_lock(&control->mutex);
    if (said == EOWNERDEAD) pthread_mutex_consistent(&control->mutex);
    else if (said) die("lock");
}

static void unlock(void) { pthread_mutex_unlock(&control->mutex); }

static uint64_t put_at(int fd, uint64_t offset, const void *bytes, size_t count) {
    const char *at = bytes;
    while (count) {
        ssize_t done = syscall(SYS_pwrite64, fd, at, count, offset);
        if (done <= 0) die("log");
        at += done;
        offset += done;
        count -= done;
    }
    return offset;
}

static void put(enum kind kind, uint64_t inode, uint64_t folder, const char *name, uint64_t folder2, const char *name2,
                int64_t offset, const void *data, size_t count) {
    struct record r = {0x48535243u, 0, control->next, kind, (int32_t)getpid(), inode, folder, folder2, offset,
                       name ? strlen(name) : 0, name2 ? strlen(name2) : 0, count};
    r.length = sizeof r + r.name_bytes + r.name2_bytes + r.data_bytes;
    int fd = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_ftruncate, fd, control->length)) die("log");
    uint64_t end = put_at(fd, control->length, &r, sizeof r);
    end = put_at(fd, end, name, r.name_bytes);
    end = put_at(fd, end, name2, r.name2_bytes);
    end = put_at(fd, end, data, count);
    syscall(SYS_close, fd);
    control->length = end;
    control->next++;
}

/* For the program under test: `acknowledged X`, in the same order as the operations. */
int crash_mark(const char *text, size_t count) {
    if (!control) return -1;
    lock();
    put(K_MARK, 0, 0, NULL, 0, NULL, 0, text, count);
    unlock();
    return 0;
}

static int under_root(const char *path) {
    return !strncmp(path, root, root_length) && (!path[root_length] || path[root_length] == '/');
}

/* Whether a descriptor is a file or folder under the root; a deleted file still shows its last path. */
static int watched(int fd, struct stat *info) {
    if (!control || fd < 0) return 0;
    int saved = errno, yes = 0;
    if (!fstat(fd, info) && info->st_dev == root_device && (S_ISREG(info->st_mode) || S_ISDIR(info->st_mode))) {
        char link[64], path[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        if (n > 0) {
            path[n] = 0;
            yes = under_root(path);
        }
    }
    errno = saved;
    return yes;
}

/* A name as the folder that holds it and its last component; `watched` says whether that folder is under the root. */
struct place { int watched; uint64_t folder; char name[NAME_MAX + 1]; };

static struct place locate(int at, const char *path) {
    struct place p = {0};
    if (!control || !path || !*path || strlen(path) >= PATH_MAX) return p;
    int saved = errno;
    char copy[PATH_MAX];
    strcpy(copy, path);
    size_t n = strlen(copy);
    while (n > 1 && copy[n - 1] == '/') copy[--n] = 0;
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy, *folder = slash ? (slash == copy ? "/" : copy) : ".";
    if (strlen(name) <= NAME_MAX) strcpy(p.name, name);
    if (slash) *slash = 0;
    int fd = syscall(SYS_openat, at, *folder ? folder : "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    struct stat info;
    if (fd >= 0) {
        p.watched = watched(fd, &info);
        p.folder = p.watched ? info.st_ino : 0;
        syscall(SYS_close, fd);
    }
    errno = saved;
    return p;
}

static uint64_t inode_at(int at, const char *path, struct stat *info) {
    int saved = errno;
    uint64_t inode = fstatat(at, path, info, AT_SYMLINK_NOFOLLOW) ? 0 : info->st_ino;
    errno = saved;
    return inode;
}

static void unsupported(const char *what, int fd) {
    struct stat info;
    if (!watched(fd, &info)) return;
    lock();
    put(K_UNSUPPORTED, info.st_ino, 0, what, 0, NULL, 0, NULL, 0);
    unlock();
}

/* ---- opening ---- */

static int do_open(int at, const char *path, int flags, mode_t mode) {
    struct place p = {0};
    if (flags & (O_CREAT | O_TRUNC)) p = locate(at, path);
    if (!p.watched) {
        int fd = syscall(SYS_openat, at, path, flags, mode);
        if (fd >= 0 && (flags & O_TMPFILE) == O_TMPFILE) unsupported("O_TMPFILE", fd);
        return fd;
    }
    struct stat before, after;
    lock();
    uint64_t old = inode_at(at, path, &before);
    int fd = syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && watched(fd, &after)) {
        if (!old) put(K_CREATE, after.st_ino, p.folder, p.name, 0, NULL, 0, NULL, 0);
        else if (flags & O_TRUNC) put(K_TRUNCATE, after.st_ino, 0, NULL, 0, NULL, 0, NULL, 0);
    }
    unlock();
    return fd;
}

#define OPEN_BODY(at)                                         \
    mode_t mode = 0;                                          \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list more;                                         \
        va_start(more, flags);                                \
        mode = va_arg(more, mode_t);                          \
        va_end(more);                                         \
    }                                                         \
    return do_open(at, path, flags, mode)

int open(const char *path, int flags, ...) { OPEN_BODY(AT_FDCWD); }
int open64(const char *path, int flags, ...) { OPEN_BODY(AT_FDCWD); }
int openat(int at, const char *path, int flags, ...) { OPEN_BODY(at); }
int openat64(int at, const char *path, int flags, ...) { OPEN_BODY(at); }
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }
int creat(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* ---- content ---- */

/* offset < 0: at the file's own position. */
static ssize_t do_write(int fd, const struct iovec *parts, int count, off_t offset) {
    struct stat info;
    int known = watched(fd, &info) && S_ISREG(info.st_mode);
    if (known) lock();
    ssize_t n;
    if (offset >= 0) n = syscall(SYS_pwritev, fd, parts, count, (unsigned long)offset, 0UL);
    else n = syscall(SYS_writev, fd, parts, count);
    if (!known) return n;
    if (n > 0) {
        int saved = errno, flags = syscall(SYS_fcntl, fd, F_GETFL);
        if (flags & O_APPEND) offset = fstat(fd, &info) ? -1 : info.st_size - n;
        else if (offset < 0) offset = syscall(SYS_lseek, fd, 0, SEEK_CUR) - n;
        char *data = malloc(n);
        if (!data || offset < 0) die("write");
        size_t got = 0;
        for (int i = 0; i < count && got < (size_t)n; i++) {
            size_t part = parts[i].iov_len < n - got ? parts[i].iov_len : n - got;
            memcpy(data + got, parts[i].iov_base, part);
            got += part;
        }
        put(flags & O_DSYNC ? K_WRITE_SYNCED : K_WRITE, info.st_ino, 0, NULL, 0, NULL, offset, data, n);
        free(data);
        errno = saved;
    }
    unlock();
    return n;
}

ssize_t write(int fd, const void *data, size_t count) {
    struct stat info;
    if (!watched(fd, &info)) return syscall(SYS_write, fd, data, count);
    struct iovec part = {(void *)data, count};
    return do_write(fd, &part, 1, -1);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t offset) {
    struct iovec part = {(void *)data, count};
    if (offset < 0) return errno = EINVAL, -1;
    return do_write(fd, &part, 1, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset) { return pwrite(fd, data, count, offset); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return do_write(fd, parts, count, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    if (offset < 0) return errno = EINVAL, -1;
    return do_write(fd, parts, count, offset);
}
ssize_t pwritev64(int fd, const struct iovec *p, int count, off64_t offset) { return pwritev(fd, p, count, offset); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    struct stat info;
    if (flags && watched(fd, &info)) unsupported("pwritev2 with flags", fd);
    if (!flags) return do_write(fd, parts, count, offset);
    return syscall(SYS_pwritev2, fd, parts, count, (unsigned long)offset, 0UL, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *p, int c, off64_t o, int f) { return pwritev2(fd, p, c, o, f); }

int ftruncate(int fd, off_t size) {
    struct stat info;
    if (!watched(fd, &info)) return syscall(SYS_ftruncate, fd, size);
    lock();
    int said = syscall(SYS_ftruncate, fd, size);
    if (!said) put(K_TRUNCATE, info.st_ino, 0, NULL, 0, NULL, size, NULL, 0);
    unlock();
    return said;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int truncate(const char *path, off_t size) {
    if (!control) return syscall(SYS_truncate, path, size);
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int said = ftruncate(fd, size), saved = errno;
    syscall(SYS_close, fd);
    errno = saved;
    return said;
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }

int fallocate(int fd, int mode, off_t offset, off_t length) {
    struct stat info;
    if (!watched(fd, &info)) return syscall(SYS_fallocate, fd, mode, offset, length);
    lock();
    int said = syscall(SYS_fallocate, fd, mode, offset, length);
    if (!said && mode == 0) put(K_GROW, info.st_ino, 0, NULL, 0, NULL, offset + length, NULL, 0);
    else if (!said && mode != FALLOC_FL_KEEP_SIZE)
        put(K_UNSUPPORTED, info.st_ino, 0, "fallocate with a mode", 0, NULL, 0, NULL, 0);
    unlock();
    return said;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }
int posix_fallocate(int fd, off_t offset, off_t length) {
    int saved = errno, said = fallocate(fd, 0, offset, length) ? errno : 0;
    errno = saved;
    return said;
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE) && !(flags & MAP_ANONYMOUS)) unsupported("mmap", fd);
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
void *mmap64(void *a, size_t n, int p, int f, int fd, off64_t o) { return mmap(a, n, p, f, fd, o); }

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    unsupported("copy_file_range", out);
    return syscall(SYS_copy_file_range, in, from, out, to, count, flags);
}
ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    unsupported("sendfile", out);
    return syscall(SYS_sendfile, out, in, offset, count);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) { return sendfile(out, in, offset, count); }
ssize_t splice(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    unsupported("splice", out);
    return syscall(SYS_splice, in, from, out, to, count, flags);
}

/* ---- syncs; sync_file_range is left out on purpose: it promises nothing after a power cut ---- */

static int do_sync(long number, int fd) {
    struct stat info;
    if (!watched(fd, &info)) return syscall(number, fd);
    lock();
    int said = syscall(number, fd);
    if (!said) put(K_SYNC, info.st_ino, 0, NULL, 0, NULL, 0, NULL, 0);
    unlock();
    return said;
}
int fsync(int fd) { return do_sync(SYS_fsync, fd); }
int fdatasync(int fd) { return do_sync(SYS_fdatasync, fd); }

static void sync_all(void) {
    if (!control) return;
    put(K_SYNC_ALL, 0, 0, NULL, 0, NULL, 0, NULL, 0);
}
void sync(void) {
    if (control) lock();
    syscall(SYS_sync);
    sync_all();
    if (control) unlock();
}
int syncfs(int fd) {
    struct stat info;
    if (!watched(fd, &info)) return syscall(SYS_syncfs, fd);
    lock();
    int said = syscall(SYS_syncfs, fd);
    if (!said) sync_all();
    unlock();
    return said;
}

/* ---- names ---- */

int mkdirat(int at, const char *path, mode_t mode) {
    struct place p = locate(at, path);
    if (!p.watched) return syscall(SYS_mkdirat, at, path, mode);
    struct stat info;
    lock();
    int said = syscall(SYS_mkdirat, at, path, mode);
    if (!said) put(K_MKDIR, inode_at(at, path, &info), p.folder, p.name, 0, NULL, 0, NULL, 0);
    unlock();
    return said;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int symlinkat(const char *target, int at, const char *path) {
    struct place p = locate(at, path);
    if (!p.watched) return syscall(SYS_symlinkat, target, at, path);
    struct stat info;
    lock();
    int said = syscall(SYS_symlinkat, target, at, path);
    if (!said) put(K_SYMLINK, inode_at(at, path, &info), p.folder, p.name, 0, NULL, 0, target, strlen(target));
    unlock();
    return said;
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int linkat(int from, const char *old, int to, const char *path, int flags) {
    struct place p = locate(to, path);
    if (!p.watched) return syscall(SYS_linkat, from, old, to, path, flags);
    struct stat info;
    lock();
    int said = syscall(SYS_linkat, from, old, to, path, flags);
    if (!said) put(K_LINK, inode_at(to, path, &info), p.folder, p.name, 0, NULL, 0, NULL, 0);
    unlock();
    return said;
}
int link(const char *old, const char *path) { return linkat(AT_FDCWD, old, AT_FDCWD, path, 0); }

int renameat2(int from, const char *old, int to, const char *path, unsigned flags) {
    struct place source = locate(from, old), target = locate(to, path);
    if (!source.watched && !target.watched) return syscall(SYS_renameat2, from, old, to, path, flags);
    struct stat info;
    lock();
    int said = syscall(SYS_renameat2, from, old, to, path, flags);
    if (!said && (flags & ~RENAME_NOREPLACE || !source.watched || !target.watched))
        put(K_UNSUPPORTED, 0, 0, "an exchange, or a rename across the root", 0, NULL, 0, NULL, 0);
    else if (!said)
        put(K_RENAME, inode_at(to, path, &info), source.folder, source.name, target.folder, target.name, 0, NULL, 0);
    unlock();
    return said;
}
int renameat(int from, const char *old, int to, const char *path) { return renameat2(from, old, to, path, 0); }
int rename(const char *old, const char *path) { return renameat2(AT_FDCWD, old, AT_FDCWD, path, 0); }

int unlinkat(int at, const char *path, int flags) {
    struct place p = locate(at, path);
    if (!p.watched) return syscall(SYS_unlinkat, at, path, flags);
    struct stat info;
    lock();
    uint64_t inode = inode_at(at, path, &info);
    int said = syscall(SYS_unlinkat, at, path, flags);
    if (!said) put(K_UNLINK, inode, p.folder, p.name, 0, NULL, 0, NULL, 0);
    unlock();
    return said;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat info;
    if (!inode_at(AT_FDCWD, path, &info)) return errno = ENOENT, -1;
    return unlinkat(AT_FDCWD, path, S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0);
}
