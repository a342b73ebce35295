/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests, preloaded into hearthd and its workers: makes the nth call of one
 * kind fail in one of the programs, once, and counts what the broker holds.
 *
 * What to do is in a page shared with the test (the file in FAULT_PAGE), so that
 * it is armed and disarmed while the programs run, and a worker that is started
 * anew does not fail at the same place again. Only calls from the program's own
 * code fail (fork: anybody's, since libuv makes it): what a library does when it
 * gets no memory is not for this project to mend.
 */
#undef _FILE_OFFSET_BITS /* both names are wanted, not one renamed to the other */
#undef _FORTIFY_SOURCE /* some compilers set it; its inline pread() can't stand beside one of our own */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default"), used))

/* The order is the test's too: KINDS and ROLES in test_fault.py. */
enum kind { NONE, ALLOC, READ, WRITE, MEMFD, MMAP, SOCKETPAIR, FORK, OPEN };
enum role { BROKER, SERVE, FILL, OTHER };
enum action { FAIL, ABORT };

struct page {
        _Atomic uint32_t kind, role, action, fired;
        _Atomic uint64_t nth, seen;
        _Atomic int64_t live; /* bytes of the broker's heap */
};

static struct {
        struct page *page;
        uintptr_t start, end; /* the program's own code and data */
        enum role role;
        bool wanted, ready; /* ready: in main(). What compilers' libraries do before it (CUDA registers kernels) is not the program's */
} state;

/* This thread is in trace(), which allocates; the other threads are counted meanwhile. */
static __thread bool quiet __attribute__((tls_model("initial-exec")));

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static int on_program(struct dl_phdr_info *info, size_t size, void *ud) {
        state.start = UINTPTR_MAX;
        for (size_t i = 0; i < info->dlpi_phnum; i++)
                if (info->dlpi_phdr[i].p_type == PT_LOAD) {
                        uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                        if (at < state.start)
                                state.start = at;
                        if (at + info->dlpi_phdr[i].p_memsz > state.end)
                                state.end = at + info->dlpi_phdr[i].p_memsz;
                }
        return 1;
}

static bool has(const char *words, size_t n, const char *word) {
        return memmem(words, n, word, strlen(word) + 1) != NULL;
}

__attribute__((constructor)) static void begin(void) {
        const char *path = getenv("FAULT_PAGE");
        char words[4096];
        long fd, n;

        (void)backtrace(&(void *){ NULL }, 1); /* loads what it needs, before anything is counted */
        dl_iterate_phdr(on_program, NULL);
        fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? 0 : syscall(SYS_read, fd, words, sizeof(words));
        if (fd >= 0)
                syscall(SYS_close, fd);
        state.role = n <= 0 ? OTHER : has(words, (size_t)n, "--serve") ? SERVE : has(words, (size_t)n, "--fill") ? FILL :
                     strcmp(program_invocation_short_name, "hearthd") == 0 ? BROKER : OTHER;
        fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
        if (fd < 0)
                return;
        state.page = (struct page *)syscall(SYS_mmap, NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        syscall(SYS_close, fd);
        if (state.page == MAP_FAILED)
                state.page = NULL;
        state.wanted = state.page && state.role != OTHER;
        if (state.wanted && state.role == BROKER)
                atomic_store(&state.page->live, 0);
}

typedef int (*main_fn)(int, char **, char **);
static main_fn program_main;

static int from_main(int argc, char **argv, char **env) {
        state.ready = state.wanted;
        return program_main(argc, argv, env);
}

int __libc_start_main(main_fn, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
PUBLIC int __libc_start_main(main_fn f, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *stack) {
        typedef int (*start_fn)(main_fn, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
        start_fn next = (start_fn)dlsym(RTLD_NEXT, "__libc_start_main");

        program_main = f;
        return next(from_main, argc, argv, init, fini, rtld_fini, stack);
}

/* Where, into the log: addr2line reads it. */
static void trace(void) {
        static const char title[] = "fault at:\n";
        void *frames[12];

        quiet = true;
        (void)!syscall(SYS_write, 2, title, sizeof(title) - 1);
        backtrace_symbols_fd(frames, backtrace(frames, 12), 2);
        quiet = false;
}

static bool hit(enum kind kind, const void *caller) {
        struct page *p = state.page;
        uintptr_t at = (uintptr_t)caller;

        if (!state.ready || quiet || atomic_load_explicit(&p->kind, memory_order_relaxed) != kind || atomic_load(&p->role) != state.role ||
            (caller && (at < state.start || at >= state.end)))
                return false;
        if (atomic_fetch_add(&p->seen, 1) + 1 != atomic_load(&p->nth))
                return false;
        atomic_fetch_add(&p->fired, 1);
        trace();
        if (atomic_load(&p->action) == ABORT)
                abort();
        return true;
}

#define HERE __builtin_return_address(0)

/* ---- memory ---- */

static void *count(void *p) {
        if (state.ready && !quiet && state.role == BROKER && p)
                atomic_fetch_add(&state.page->live, (int64_t)malloc_usable_size(p));
        return p;
}

static void uncount(void *p) {
        if (state.ready && !quiet && state.role == BROKER && p)
                atomic_fetch_sub(&state.page->live, (int64_t)malloc_usable_size(p));
}

static void *no_memory(void) {
        errno = ENOMEM;
        return NULL;
}

PUBLIC void *malloc(size_t n) {
        return hit(ALLOC, HERE) ? no_memory() : count(__libc_malloc(n));
}

PUBLIC void *calloc(size_t n, size_t size) {
        return hit(ALLOC, HERE) ? no_memory() : count(__libc_calloc(n, size));
}

PUBLIC void *realloc(void *old, size_t n) {
        void *p;

        if (hit(ALLOC, HERE))
                return no_memory();
        uncount(old);
        p = __libc_realloc(old, n);
        count(p || !n ? p : old);
        return p;
}

PUBLIC void *aligned_alloc(size_t align, size_t n) {
        return hit(ALLOC, HERE) ? no_memory() : count(__libc_memalign(align, n));
}

PUBLIC int posix_memalign(void **ret, size_t align, size_t n) {
        void *p = hit(ALLOC, HERE) ? NULL : count(__libc_memalign(align, n));
        if (!p)
                return ENOMEM;
        *ret = p;
        return 0;
}

PUBLIC void free(void *p) {
        uncount(p);
        __libc_free(p);
}

/* ---- the system ---- */

static long failed(int e) {
        errno = e;
        return -1;
}

PUBLIC ssize_t read(int fd, void *p, size_t n) {
        return hit(READ, HERE) ? failed(EIO) : syscall(SYS_read, fd, p, n);
}

PUBLIC ssize_t pread(int fd, void *p, size_t n, off_t at) {
        return hit(READ, HERE) ? failed(EIO) : syscall(SYS_pread64, fd, p, n, at);
}

PUBLIC ssize_t pread64(int fd, void *p, size_t n, off64_t at) {
        return hit(READ, HERE) ? failed(EIO) : syscall(SYS_pread64, fd, p, n, at);
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
        return hit(READ, HERE) ? failed(EIO) : syscall(SYS_recvmsg, fd, m, flags);
}

PUBLIC ssize_t write(int fd, const void *p, size_t n) {
        return hit(WRITE, HERE) ? failed(ENOSPC) : syscall(SYS_write, fd, p, n);
}

PUBLIC ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
        return hit(WRITE, HERE) ? failed(ENOSPC) : syscall(SYS_pwrite64, fd, p, n, at);
}

PUBLIC ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) {
        return hit(WRITE, HERE) ? failed(ENOSPC) : syscall(SYS_pwrite64, fd, p, n, at);
}

PUBLIC ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
        return hit(WRITE, HERE) ? failed(EIO) : syscall(SYS_sendmsg, fd, m, flags);
}

PUBLIC int ftruncate64(int fd, off64_t n) {
        return (int)(hit(WRITE, HERE) ? failed(ENOSPC) : syscall(SYS_ftruncate, fd, n));
}

PUBLIC int memfd_create(const char *name, unsigned flags) {
        return (int)(hit(MEMFD, HERE) ? failed(ENFILE) : syscall(SYS_memfd_create, name, flags));
}

PUBLIC void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off) {
        return hit(MMAP, HERE) ? (void *)failed(ENOMEM) : (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
}

PUBLIC void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t off) {
        return hit(MMAP, HERE) ? (void *)failed(ENOMEM) : (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
}

PUBLIC int socketpair(int domain, int type, int protocol, int fds[2]) {
        return (int)(hit(SOCKETPAIR, HERE) ? failed(EMFILE) : syscall(SYS_socketpair, domain, type, protocol, fds));
}

PUBLIC int socket(int domain, int type, int protocol) {
        return (int)(hit(OPEN, HERE) ? failed(EMFILE) : syscall(SYS_socket, domain, type, protocol));
}

PUBLIC int accept4(int fd, struct sockaddr *a, socklen_t *n, int flags) {
        return (int)(hit(OPEN, HERE) ? failed(EMFILE) : syscall(SYS_accept4, fd, a, n, flags));
}

static long open_at(int dir, const char *path, int flags, mode_t mode) {
        return syscall(SYS_openat, dir, path, flags, mode);
}

PUBLIC int open(const char *path, int flags, ...) {
        va_list ap;
        mode_t mode;

        va_start(ap, flags);
        mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
        va_end(ap);
        return (int)(hit(OPEN, HERE) ? failed(EMFILE) : open_at(AT_FDCWD, path, flags, mode));
}

PUBLIC int open64(const char *path, int flags, ...) {
        va_list ap;
        mode_t mode;

        va_start(ap, flags);
        mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
        va_end(ap);
        return (int)(hit(OPEN, HERE) ? failed(EMFILE) : open_at(AT_FDCWD, path, flags, mode));
}

PUBLIC pid_t fork(void) {
        pid_t (*real)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
        return hit(FORK, NULL) || !real ? (pid_t)failed(EAGAIN) : real();
}
