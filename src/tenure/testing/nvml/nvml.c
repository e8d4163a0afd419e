/* A library with the ABI of NVML that answers from a scenario file: the real bindings load it like the driver's own.
 *
 * The scenario (TENURE_SIM_SCENARIO, else the file `scenario` beside this library) is read again whenever its
 * mtime, size or inode changed, so that another program can edit it while this one runs. It is text, one setting a
 * line, `#` starts a comment; `device N` begins a device, what stands before the first device holds for all:
 *
 *     driver 570.133.20
 *     cuda 12080
 *     reap on                      # drop the entries of processes that ended, as a driver does
 *     fault nvmlInit LIB_RM_VERSION_MISMATCH
 *     device 0
 *     uuid GPU-0a1b...
 *     name NVIDIA H100 80GB HBM3
 *     pci 00000000:1B:00.0
 *     memory_total_mb 81559
 *     memory_used_mb 4             # at rest; processes come on top
 *     memory_reserved_mb 553       # counted as used by the first version of the memory call only
 *     process 4242 memory_mb=18000 sm=90 kind=compute start=12345 foreign=1
 *     account 4242 gpu=90 memory=40 max_memory_mb=18000 time_ms=5000 running=0
 *     fault nvmlDeviceGetMemoryInfo* NOT_SUPPORTED
 *
 * A fault names a function and says how. The name is without its version (nvmlInit, nvmlDeviceGetCount) except for
 * the memory call and the process lists, whose versions differ and fail one by one (..._v2, ..._v3); a final * matches
 * any ending. How: an NVML error by name or number, `garbage` (all ones), `hang [S]` (seconds, for ever where left
 * out), `delay MS`, `abort`, `segv`, `exit`. Delays and hangs with an end go on to the next matching fault; everything
 * else ends the call. A MIG instance is a device with `parent N`.
 *
 * Struct layouts and error numbers are those of nvidia-ml-py 13. Written for tests: no GPU is touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999,
};

static const struct { int code; const char *name, *words; } ERRORS[] = {
    {0, "SUCCESS", "Success"}, {1, "UNINITIALIZED", "Uninitialized"}, {2, "INVALID_ARGUMENT", "Invalid Argument"},
    {3, "NOT_SUPPORTED", "Not Supported"}, {4, "NO_PERMISSION", "Insufficient Permissions"},
    {5, "ALREADY_INITIALIZED", "Already Initialized"}, {6, "NOT_FOUND", "Not Found"},
    {7, "INSUFFICIENT_SIZE", "Insufficient Size"}, {8, "INSUFFICIENT_POWER", "Insufficient External Power"},
    {9, "DRIVER_NOT_LOADED", "Driver Not Loaded"}, {10, "TIMEOUT", "Timeout"}, {11, "IRQ_ISSUE", "Interrupt Request Issue"},
    {12, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"}, {13, "FUNCTION_NOT_FOUND", "Function Not Found"},
    {14, "CORRUPTED_INFOROM", "Corrupted infoROM"}, {15, "GPU_IS_LOST", "GPU is lost"},
    {16, "RESET_REQUIRED", "GPU requires restart"}, {17, "OPERATING_SYSTEM", "The operating system has blocked the request."},
    {18, "LIB_RM_VERSION_MISMATCH", "RM has detected an NVML/RM version mismatch."}, {19, "IN_USE", "In use by another client"},
    {20, "MEMORY", "Insufficient Memory"}, {21, "NO_DATA", "No data"}, {25, "ARGUMENT_VERSION_MISMATCH", "Argument version mismatch"},
    {26, "DEPRECATED", "Deprecated"}, {27, "NOT_READY", "Not ready"}, {28, "GPU_NOT_FOUND", "GPU not found"},
    {999, "UNKNOWN", "Unknown Error"},
};
#define N_ERRORS (sizeof ERRORS / sizeof *ERRORS)

/* ---- the structs of the ABI */

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } rates;
typedef struct { unsigned int pid; unsigned long long used; } process_v1;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_v2;
typedef struct { unsigned int pid; unsigned long long at; unsigned int sm, memory, enc, dec; } util_sample;
typedef struct {
    char legacy[16]; unsigned int domain, bus, device, pci_id, subsystem; char bus_id[32];
} pci_info;
typedef struct {
    unsigned int gpu, memory; unsigned long long max_memory, time, start; unsigned int running, reserved[5];
} account_stats;
typedef struct { unsigned int version; int sensor; int temperature; } temperature_v1;

/* ---- the scenario in memory */

typedef struct { char function[80], how[24]; double amount; } fault;
typedef struct {
    unsigned int pid; unsigned long long start; long long memory_mb; unsigned int sm; int foreign; char kind[12];
} process;
typedef struct { unsigned int pid, gpu, memory, running; unsigned long long max_memory_mb, time_ms; } account;
typedef struct { char key[32], value[96]; } setting;
typedef struct {
    char uuid[96]; int parent;
    setting *settings; int n_settings;
    process *processes; int n_processes;
    account *accounts; int n_accounts;
    fault *faults; int n_faults;
} section; /* section 0 holds what stands before the first device */

static section *sections;
static int n_sections;
static struct stat seen;
static int loaded, references;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

typedef struct handle { char uuid[96]; struct handle *next; } handle; /* lives as long as the process */
static handle *handles;

EXPORT int tenure_simulated_nvml = 1; /* by this symbol a reader knows that no GPU is behind it */

#define GROW(list, n) ((list) = realloc((list), sizeof *(list) * (size_t)((n) + 1)), memset(&(list)[n], 0, sizeof *(list)), &(list)[(n)++])

static const char *scenario_path(void) {
    static char path[PATH_MAX];
    const char *given = getenv("TENURE_SIM_SCENARIO");
    if (given && *given) return given;
    Dl_info info;
    if (!*path && dladdr((void *)&tenure_simulated_nvml, &info) && info.dli_fname) {
        snprintf(path, sizeof path, "%s", info.dli_fname);
        char *slash = strrchr(path, '/');
        snprintf(slash ? slash + 1 : path, 16, "scenario");
    }
    return path;
}

static void parse_pairs(char *text, process *p, account *a) {
    char *save = NULL;
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = 0;
        long long number = strtoll(value, NULL, 10);
        if (p) {
            if (!strcmp(word, "memory_mb")) p->memory_mb = strcmp(value, "NA") ? number : -1;
            else if (!strcmp(word, "sm")) p->sm = (unsigned)number;
            else if (!strcmp(word, "start")) p->start = (unsigned long long)number;
            else if (!strcmp(word, "foreign")) p->foreign = (int)number;
            else if (!strcmp(word, "kind")) snprintf(p->kind, sizeof p->kind, "%s", value);
        } else {
            if (!strcmp(word, "gpu")) a->gpu = (unsigned)number;
            else if (!strcmp(word, "memory")) a->memory = (unsigned)number;
            else if (!strcmp(word, "running")) a->running = (unsigned)number;
            else if (!strcmp(word, "max_memory_mb")) a->max_memory_mb = (unsigned long long)number;
            else if (!strcmp(word, "time_ms")) a->time_ms = (unsigned long long)number;
        }
    }
}

static void parse_line(char *line) {
    line[strcspn(line, "#\r\n")] = 0;
    char *key = line + strspn(line, " \t"), *value = key + strcspn(key, " \t");
    if (*value) *value++ = 0;
    value += strspn(value, " \t");
    for (size_t n = strlen(value); n && (value[n - 1] == ' ' || value[n - 1] == '\t');) value[--n] = 0;
    if (!*key) return;
    if (!strcmp(key, "device")) {
        GROW(sections, n_sections)->parent = -1;
        return;
    }
    section *s = &sections[n_sections - 1];
    if (!strcmp(key, "uuid")) snprintf(s->uuid, sizeof s->uuid, "%s", value);
    else if (!strcmp(key, "parent")) s->parent = atoi(value);
    else if (!strcmp(key, "process")) {
        process *p = GROW(s->processes, s->n_processes);
        snprintf(p->kind, sizeof p->kind, "compute");
        char *rest = NULL;
        p->pid = (unsigned)strtoul(value, &rest, 10);
        parse_pairs(rest, p, NULL);
    } else if (!strcmp(key, "account")) {
        account *a = GROW(s->accounts, s->n_accounts);
        char *rest = NULL;
        a->pid = (unsigned)strtoul(value, &rest, 10);
        parse_pairs(rest, NULL, a);
    } else if (!strcmp(key, "fault")) {
        fault *f = GROW(s->faults, s->n_faults);
        f->amount = -1;
        sscanf(value, "%79s %23s %lf", f->function, f->how, &f->amount);
    } else {
        setting *t = GROW(s->settings, s->n_settings);
        snprintf(t->key, sizeof t->key, "%s", key);
        snprintf(t->value, sizeof t->value, "%s", value);
    }
}

/* Call with the mutex held. False where there is no scenario: then there is no driver. */
static int refresh(void) {
    struct stat now;
    const char *path = scenario_path();
    if (stat(path, &now)) return 0;
    if (loaded && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec &&
        now.st_size == seen.st_size && now.st_ino == seen.st_ino)
        return 1;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    fstat(fileno(file), &now);
    for (int i = 0; i < n_sections; i++) {
        free(sections[i].settings), free(sections[i].processes), free(sections[i].accounts), free(sections[i].faults);
    }
    n_sections = 0;
    GROW(sections, n_sections)->parent = -1;
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) >= 0) parse_line(line);
    free(line);
    fclose(file);
    seen = now;
    loaded = 1;
    return 1;
}

static const char *text(const section *s, const char *key) {
    for (int i = s->n_settings; i-- > 0;)
        if (!strcmp(s->settings[i].key, key)) return s->settings[i].value;
    return NULL;
}

static long long number(const section *s, const char *key, long long otherwise) {
    const char *value = text(s, key);
    return value && *value ? strtoll(value, NULL, 0) : otherwise;
}

static int is_on(const section *s, const char *key, int otherwise) {
    const char *value = text(s, key);
    return value ? !strcasecmp(value, "on") || !strcmp(value, "1") : otherwise;
}

/* ---- faults: what the scenario says must happen instead of an answer */

#define GARBAGE (-1)
#define ANSWER (-2)

static int code_of(const char *how) {
    for (size_t i = 0; i < N_ERRORS; i++)
        if (!strcasecmp(ERRORS[i].name, how)) return ERRORS[i].code;
    char *end = NULL;
    long code = strtol(how, &end, 10);
    return end != how && !*end ? (int)code : UNKNOWN;
}

static int matches(const char *pattern, const char *function) {
    size_t n = strlen(pattern);
    return n && pattern[n - 1] == '*' ? !strncmp(pattern, function, n - 1) : !strcmp(pattern, function);
}

static void pass_time(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

/* Acts out one section's faults for a function. Holds the mutex on entry and on return, not while it sleeps. */
static int act(int index, const char *function) {
    for (int i = 0; index < n_sections && i < sections[index].n_faults; i++) {
        fault f = sections[index].faults[i];
        if (!matches(f.function, function)) continue;
        if (!strcmp(f.how, "hang") || !strcmp(f.how, "delay")) {
            pthread_mutex_unlock(&mutex);
            if (!strcmp(f.how, "delay")) pass_time(f.amount / 1000);
            else if (f.amount >= 0) pass_time(f.amount);
            else for (;;) pause();
            pthread_mutex_lock(&mutex);
            refresh();
        } else if (!strcmp(f.how, "abort")) abort();
        else if (!strcmp(f.how, "segv")) raise(SIGSEGV);
        else if (!strcmp(f.how, "exit")) _exit(3);
        else return !strcmp(f.how, "garbage") ? GARBAGE : code_of(f.how);
    }
    return ANSWER;
}

static int find(const handle *h) {
    for (int i = 1; h && i < n_sections; i++)
        if (!strcmp(sections[i].uuid, h->uuid)) return i;
    return -1;
}

static handle *handle_of(const char *uuid) {
    for (handle *h = handles; h; h = h->next)
        if (!strcmp(h->uuid, uuid)) return h;
    handle *h = calloc(1, sizeof *h);
    snprintf(h->uuid, sizeof h->uuid, "%s", uuid);
    h->next = handles;
    return handles = h;
}

/* Begins a call about one device: locks, reads the scenario anew, acts out its faults. On ANSWER and GARBAGE the mutex
 * stays held and *out is the device's section; otherwise the mutex is released and the code is the call's result. */
static int enter(const handle *h, const char *function, section **out) {
    pthread_mutex_lock(&mutex);
    int result = !references ? UNINITIALIZED : !refresh() ? UNKNOWN : act(0, function);
    if (result == ANSWER) {
        int index = find(h);
        result = index < 0 ? (h ? GPU_IS_LOST : INVALID_ARGUMENT) : act(index, function);
        if (result == ANSWER || result == GARBAGE) {
            index = find(h);
            if (index < 0) result = GPU_IS_LOST;
            else *out = &sections[index];
        }
    } else if (result == GARBAGE) {
        int index = find(h);
        if (index < 0) result = GPU_IS_LOST;
        else *out = &sections[index];
    }
    if (result != ANSWER && result != GARBAGE) pthread_mutex_unlock(&mutex);
    return result;
}

static int enter_system(const char *function) {
    pthread_mutex_lock(&mutex);
    int result = !references ? UNINITIALIZED : !refresh() ? UNKNOWN : act(0, function);
    if (result != ANSWER && result != GARBAGE) pthread_mutex_unlock(&mutex);
    return result;
}

static int leave(int code) {
    pthread_mutex_unlock(&mutex);
    return code;
}

/* ---- what a device holds and does */

static int alive(const process *p) {
    if (p->foreign || !is_on(&sections[0], "reap", 1)) return 1;
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", p->pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = 0;
    char *rest = strrchr(line, ')'), state = 0;
    unsigned long long start = 0;
    if (!rest || sscanf(rest + 2, "%c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                        &state, &start) != 2)
        return 0;
    return state != 'Z' && state != 'X' && (!p->start || p->start == start);
}

static long long processes_mb(const section *s) {
    long long sum = 0;
    for (int i = 0; i < s->n_processes; i++)
        if (s->processes[i].memory_mb > 0 && alive(&s->processes[i])) sum += s->processes[i].memory_mb;
    return sum;
}

static long long busy(const section *s) {
    long long sum = 0;
    for (int i = 0; i < s->n_processes; i++)
        if (alive(&s->processes[i])) sum += s->processes[i].sm;
    if (sum > 100) sum = 100;
    const char *set = text(s, "util");
    return set && strcmp(set, "auto") ? number(s, "util", 0) : sum;
}

/* ---- exported: life cycle and system */

static int init(void) {
    pthread_mutex_lock(&mutex);
    int result = !refresh() ? DRIVER_NOT_LOADED : act(0, "nvmlInit");
    if (result == GARBAGE) result = UNKNOWN;
    if (result == ANSWER) references++, result = SUCCESS;
    return leave(result);
}
EXPORT int nvmlInit(void) { return init(); }
EXPORT int nvmlInit_v2(void) { return init(); }
EXPORT int nvmlInitWithFlags(unsigned int flags) { (void)flags; return init(); }

EXPORT int nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    return leave(references ? (references--, SUCCESS) : UNINITIALIZED);
}

EXPORT const char *nvmlErrorString(int code) {
    for (size_t i = 0; i < N_ERRORS; i++)
        if (ERRORS[i].code == code) return ERRORS[i].words;
    return "Unknown Error";
}

static int copy(char *out, unsigned int length, const char *value) {
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) + 1 > length) return INSUFFICIENT_SIZE;
    memcpy(out, value, strlen(value) + 1);
    return SUCCESS;
}

static int garbage_text(char *out, unsigned int length) {
    if (length) memset(out, 0xFF, length - 1), out[length - 1] = 0; /* not even UTF-8 */
    return SUCCESS;
}

static int system_text(const char *function, const char *key, char *out, unsigned int length) {
    int how = enter_system(function);
    if (how == ANSWER) return leave(copy(out, length, text(&sections[0], key)));
    return how == GARBAGE ? leave(garbage_text(out, length)) : how;
}
EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned int n) { return system_text(__func__, "driver", out, n); }
EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned int n) { return system_text(__func__, "nvml", out, n); }

static int cuda_version(const char *function, int *out) {
    int how = enter_system(function);
    if (how != ANSWER && how != GARBAGE) return how;
    *out = how == GARBAGE ? -1 : (int)number(&sections[0], "cuda", 12080);
    return leave(SUCCESS);
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version(__func__, out); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version("nvmlSystemGetCudaDriverVersion", out); }

static int count_cards(void) {
    int n = 0;
    for (int i = 1; i < n_sections; i++) n += sections[i].parent < 0;
    return n;
}

static int card(int index) { /* section of the index-th whole card */
    for (int i = 1; i < n_sections; i++)
        if (sections[i].parent < 0 && index-- == 0) return i;
    return -1;
}

static int device_count(const char *function, unsigned int *out) {
    int how = enter_system(function);
    if (how != ANSWER && how != GARBAGE) return how;
    *out = how == GARBAGE ? UINT_MAX : (unsigned)count_cards();
    return leave(SUCCESS);
}
EXPORT int nvmlDeviceGetCount(unsigned int *out) { return device_count(__func__, out); }
EXPORT int nvmlDeviceGetCount_v2(unsigned int *out) { return device_count("nvmlDeviceGetCount", out); }

/* ---- exported: handles */

static int open_section(int index, const char *function, handle **out) {
    if (index < 0) return leave(NOT_FOUND);
    int how = act(index, function);
    if (how != ANSWER) return leave(how == GARBAGE ? UNKNOWN : how);
    *out = handle_of(sections[index].uuid);
    return leave(SUCCESS);
}

static int by_index(const char *function, unsigned int index, handle **out) {
    int how = enter_system(function);
    if (how != ANSWER) return how == GARBAGE ? leave(UNKNOWN) : how;
    int at = card((int)index);
    return at < 0 ? leave(INVALID_ARGUMENT) : open_section(at, function, out);
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned int i, handle **out) { return by_index(__func__, i, out); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int i, handle **out) { return by_index("nvmlDeviceGetHandleByIndex", i, out); }

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, handle **out) {
    int how = enter_system(__func__), at = -1;
    if (how != ANSWER) return how == GARBAGE ? leave(UNKNOWN) : how;
    for (int i = 1; i < n_sections; i++)
        if (!strcmp(sections[i].uuid, uuid)) at = i;
    return open_section(at, __func__, out);
}

static int by_pci(const char *function, const char *id, handle **out) {
    int how = enter_system(function), at = -1;
    if (how != ANSWER) return how == GARBAGE ? leave(UNKNOWN) : how;
    for (int i = 1; i < n_sections; i++) {
        const char *pci = text(&sections[i], "pci");
        if (!pci || sections[i].parent >= 0) continue;
        size_t long_n = strlen(pci), n = strlen(id); /* 0000:1B:00.0 names 00000000:1B:00.0 too */
        if (n <= long_n && !strcasecmp(pci + long_n - n, id)) at = i;
    }
    return open_section(at, function, out);
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *id, handle **out) { return by_pci(__func__, id, out); }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, handle **out) { return by_pci("nvmlDeviceGetHandleByPciBusId", id, out); }

/* ---- exported: texts and single numbers of a device */

static int device_text(handle *h, const char *function, const char *key, char *out, unsigned int length) {
    section *s = NULL;
    int how = enter(h, function, &s);
    if (how == GARBAGE) return leave(garbage_text(out, length));
    return how == ANSWER ? leave(copy(out, length, strcmp(key, "uuid") ? text(s, key) : s->uuid)) : how;
}
EXPORT int nvmlDeviceGetName(handle *h, char *out, unsigned int n) { return device_text(h, __func__, "name", out, n); }
EXPORT int nvmlDeviceGetUUID(handle *h, char *out, unsigned int n) { return device_text(h, __func__, "uuid", out, n); }

/* One unsigned number from the setting `key` (from `busy_key` while the device works); absent means NOT_SUPPORTED. */
static int device_number(handle *h, const char *function, const char *key, const char *busy_key, unsigned int *out) {
    section *s = NULL;
    int how = enter(h, function, &s);
    if (how == GARBAGE) return *out = UINT_MAX, leave(SUCCESS);
    if (how != ANSWER) return how;
    if (busy_key && text(s, busy_key) && busy(s) > 0) key = busy_key;
    if (!text(s, key)) return leave(NOT_SUPPORTED);
    *out = (unsigned)number(s, key, 0);
    return leave(SUCCESS);
}
EXPORT int nvmlDeviceGetMinorNumber(handle *h, unsigned int *out) { return device_number(h, __func__, "minor", NULL, out); }
EXPORT int nvmlDeviceGetPersistenceMode(handle *h, unsigned int *out) { return device_number(h, __func__, "persistence", NULL, out); }
EXPORT int nvmlDeviceGetPerformanceState(handle *h, unsigned int *out) { return device_number(h, __func__, "pstate", "busy_pstate", out); }
EXPORT int nvmlDeviceGetPowerState(handle *h, unsigned int *out) { return device_number(h, __func__, "pstate", "busy_pstate", out); }
EXPORT int nvmlDeviceGetPowerUsage(handle *h, unsigned int *out) { return device_number(h, __func__, "power_mw", "busy_power_mw", out); }
EXPORT int nvmlDeviceGetPowerManagementLimit(handle *h, unsigned int *out) { return device_number(h, __func__, "power_limit_mw", NULL, out); }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(handle *h, unsigned int *out) { return device_number(h, __func__, "power_limit_mw", NULL, out); }
EXPORT int nvmlDeviceGetAccountingMode(handle *h, unsigned int *out) { return device_number(h, __func__, "accounting", NULL, out); }
EXPORT int nvmlDeviceGetAccountingBufferSize(handle *h, unsigned int *out) { return device_number(h, __func__, "accounting_buffer", NULL, out); }
EXPORT int nvmlDeviceGetGpuInstanceId(handle *h, unsigned int *out) { return device_number(h, __func__, "gpu_instance", NULL, out); }
EXPORT int nvmlDeviceGetComputeInstanceId(handle *h, unsigned int *out) { return device_number(h, __func__, "compute_instance", NULL, out); }

EXPORT int nvmlDeviceGetTemperature(handle *h, int sensor, unsigned int *out) {
    return sensor ? INVALID_ARGUMENT : device_number(h, __func__, "temperature", "busy_temperature", out);
}
EXPORT int nvmlDeviceGetTemperatureV(handle *h, temperature_v1 *out) {
    return device_number(h, "nvmlDeviceGetTemperature", "temperature", "busy_temperature", (unsigned int *)&out->temperature);
}

static const char *CLOCKS[] = {"graphics", "sm", "mem", "video"};
static int clock_number(handle *h, const char *function, const char *prefix, int type, unsigned int *out) {
    char key[32], busy_key[32];
    if (type < 0 || type > 3) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%s_%s", prefix, CLOCKS[type]);
    snprintf(busy_key, sizeof busy_key, "busy_%s_%s", prefix, CLOCKS[type]);
    return device_number(h, function, key, busy_key, out);
}
EXPORT int nvmlDeviceGetClockInfo(handle *h, int type, unsigned int *out) { return clock_number(h, __func__, "clock", type, out); }
EXPORT int nvmlDeviceGetMaxClockInfo(handle *h, int type, unsigned int *out) { return clock_number(h, __func__, "max_clock", type, out); }
EXPORT int nvmlDeviceGetApplicationsClock(handle *h, int type, unsigned int *out) { return clock_number(h, __func__, "app_clock", type, out); }
EXPORT int nvmlDeviceGetDefaultApplicationsClock(handle *h, int type, unsigned int *out) { return clock_number(h, __func__, "app_clock", type, out); }

static int event_reasons(handle *h, const char *function, unsigned long long *out) {
    section *s = NULL;
    int how = enter(h, function, &s);
    if (how == GARBAGE) return *out = ULLONG_MAX, leave(SUCCESS);
    if (how != ANSWER) return how;
    const char *set = text(s, "throttle");
    *out = set && strcmp(set, "auto") ? strtoull(set, NULL, 0) : busy(s) > 0 ? 0 : 1; /* idle */
    return leave(SUCCESS);
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(handle *h, unsigned long long *out) { return event_reasons(h, __func__, out); }
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(handle *h, unsigned long long *out) { return event_reasons(h, __func__, out); }

EXPORT int nvmlDeviceGetIndex(handle *h, unsigned int *out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return *out = UINT_MAX, leave(SUCCESS);
    if (how != ANSWER) return how;
    for (int i = 0; card(i) >= 0; i++)
        if (&sections[card(i)] == s) return *out = (unsigned)i, leave(SUCCESS);
    return leave(NOT_SUPPORTED);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(handle *h, int *major, int *minor) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return *major = *minor = -1, leave(SUCCESS);
    if (how != ANSWER) return how;
    const char *value = text(s, "capability");
    return leave(value && sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED);
}

static int pci(handle *h, const char *function, pci_info *out) {
    section *s = NULL;
    int how = enter(h, function, &s);
    if (how == GARBAGE) return memset(out, 0xFF, sizeof *out), leave(SUCCESS);
    if (how != ANSWER) return how;
    const char *value = text(s, "pci");
    if (!value) return leave(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", value);
    snprintf(out->legacy, sizeof out->legacy, "%s", strlen(value) > 12 ? value + 4 : value);
    sscanf(value, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->pci_id = (unsigned)number(s, "pci_id", 0x233010DE);
    return leave(SUCCESS);
}
EXPORT int nvmlDeviceGetPciInfo(handle *h, pci_info *out) { return pci(h, __func__, out); }
EXPORT int nvmlDeviceGetPciInfo_v2(handle *h, pci_info *out) { return pci(h, "nvmlDeviceGetPciInfo", out); }
EXPORT int nvmlDeviceGetPciInfo_v3(handle *h, pci_info *out) { return pci(h, "nvmlDeviceGetPciInfo", out); }

/* ---- exported: memory, utilisation, process lists */

/* The first version counts the driver's reserve as used, the second tells it apart. */
EXPORT int nvmlDeviceGetMemoryInfo(handle *h, memory_v1 *out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return out->total = out->free = out->used = ULLONG_MAX, leave(SUCCESS);
    if (how != ANSWER) return how;
    if (!text(s, "memory_total_mb")) return leave(NOT_SUPPORTED);
    out->total = (unsigned long long)number(s, "memory_total_mb", 0) << 20;
    out->used = (unsigned long long)(number(s, "memory_used_mb", 0) + number(s, "memory_reserved_mb", 0) + processes_mb(s)) << 20;
    out->free = out->total > out->used ? out->total - out->used : 0;
    return leave(SUCCESS);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(handle *h, memory_v2 *out) {
    section *s = NULL;
    if ((out->version & 0xFFFFFF) != sizeof *out) return ARGUMENT_VERSION_MISMATCH;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return out->total = out->reserved = out->free = out->used = ULLONG_MAX, leave(SUCCESS);
    if (how != ANSWER) return how;
    if (!text(s, "memory_total_mb")) return leave(NOT_SUPPORTED);
    out->total = (unsigned long long)number(s, "memory_total_mb", 0) << 20;
    out->reserved = (unsigned long long)number(s, "memory_reserved_mb", 0) << 20;
    out->used = (unsigned long long)(number(s, "memory_used_mb", 0) + processes_mb(s)) << 20;
    out->free = out->total > out->used + out->reserved ? out->total - out->used - out->reserved : 0;
    return leave(SUCCESS);
}

EXPORT int nvmlDeviceGetUtilizationRates(handle *h, rates *out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return out->gpu = out->memory = UINT_MAX, leave(SUCCESS);
    if (how != ANSWER) return how;
    if (s->parent >= 0) return leave(NOT_SUPPORTED); /* as for real MIG instances */
    out->gpu = (unsigned)busy(s);
    out->memory = (unsigned)number(s, "memory_util", busy(s) / 3);
    return leave(SUCCESS);
}

/* How many entries of a kind there are; each is handed to the writer of the version asked for. */
static int list(handle *h, const char *function, const char *kind, unsigned int *count, void *out, int version) {
    section *s = NULL;
    int how = enter(h, function, &s);
    if (how != ANSWER && how != GARBAGE) return how;
    unsigned int n = 0, room = out ? *count : 0;
    int full = 0;
    for (int i = 0; i < (how == GARBAGE ? 1 : s->n_processes); i++) {
        process made = {UINT_MAX, 0, -1, 0, 0, ""};
        const process *p = how == GARBAGE ? &made : &s->processes[i];
        if (how != GARBAGE && (strcmp(p->kind, kind) || !alive(p))) continue;
        if (n >= room) full = 1;
        else {
            unsigned long long used = p->memory_mb < 0 ? ULLONG_MAX : (unsigned long long)p->memory_mb << 20;
            unsigned int gi = (unsigned)number(s, "gpu_instance", UINT_MAX), ci = (unsigned)number(s, "compute_instance", UINT_MAX);
            if (version == 1) ((process_v1 *)out)[n] = (process_v1){p->pid, used};
            else ((process_v2 *)out)[n] = (process_v2){p->pid, used, gi, ci};
        }
        n++;
    }
    *count = n;
    return leave(full ? INSUFFICIENT_SIZE : SUCCESS);
}
#define LISTS(what, kind) \
    EXPORT int nvmlDeviceGet##what##RunningProcesses(handle *h, unsigned int *n, void *out) { return list(h, __func__, kind, n, out, 1); } \
    EXPORT int nvmlDeviceGet##what##RunningProcesses_v2(handle *h, unsigned int *n, void *out) { return list(h, __func__, kind, n, out, 2); } \
    EXPORT int nvmlDeviceGet##what##RunningProcesses_v3(handle *h, unsigned int *n, void *out) { return list(h, __func__, kind, n, out, 3); }
LISTS(Compute, "compute")
LISTS(Graphics, "graphics")
LISTS(MPSCompute, "mps")

/* One sample a living process and call, stamped now; NOT_FOUND where no process of the device lives, as drivers do. */
EXPORT int nvmlDeviceGetProcessUtilization(handle *h, util_sample *out, unsigned int *count, unsigned long long last) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how != ANSWER && how != GARBAGE) return how;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long at = (unsigned long long)now.tv_sec * 1000000ULL + (unsigned long long)now.tv_nsec / 1000;
    unsigned int n = 0, room = out ? *count : 0;
    for (int i = 0; i < s->n_processes && at > last; i++) {
        const process *p = &s->processes[i];
        if (!strcmp(p->kind, "graphics") || !alive(p)) continue;
        unsigned int sm = how == GARBAGE ? UINT_MAX : p->sm;
        if (n < room) out[n] = (util_sample){p->pid, at, sm, how == GARBAGE ? UINT_MAX : sm / 3, 0, 0};
        n++;
    }
    *count = n;
    return leave(!n ? NOT_FOUND : n > room ? INSUFFICIENT_SIZE : SUCCESS);
}

/* ---- exported: accounting */

EXPORT int nvmlDeviceGetAccountingStats(handle *h, unsigned int pid, account_stats *out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return memset(out, 0xFF, sizeof *out), leave(SUCCESS);
    if (how != ANSWER) return how;
    if (number(s, "accounting", 0) != 1) return leave(NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    for (int i = 0; i < s->n_processes; i++) {
        const process *p = &s->processes[i];
        if (p->pid != pid || !alive(p)) continue;
        out->gpu = p->sm, out->memory = p->sm / 3, out->running = 1;
        out->max_memory = p->memory_mb < 0 ? ULLONG_MAX : (unsigned long long)p->memory_mb << 20;
        return leave(SUCCESS);
    }
    for (int i = s->n_accounts; i-- > 0;) {
        const account *a = &s->accounts[i];
        if (a->pid != pid) continue;
        out->gpu = a->gpu, out->memory = a->memory, out->running = a->running;
        out->max_memory = a->max_memory_mb << 20, out->time = a->time_ms;
        return leave(SUCCESS);
    }
    return leave(NOT_FOUND);
}

EXPORT int nvmlDeviceGetAccountingPids(handle *h, unsigned int *count, unsigned int *out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how != ANSWER && how != GARBAGE) return how;
    unsigned int n = 0, room = out ? *count : 0;
    for (int i = 0; i < s->n_accounts + s->n_processes; i++) {
        unsigned int pid = i < s->n_accounts ? s->accounts[i].pid : s->processes[i - s->n_accounts].pid;
        if (n < room) out[n] = how == GARBAGE ? UINT_MAX : pid;
        n++;
    }
    *count = n;
    return leave(n > room ? INSUFFICIENT_SIZE : SUCCESS);
}

/* ---- exported: MIG */

EXPORT int nvmlDeviceGetMigMode(handle *h, unsigned int *current, unsigned int *pending) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return *current = *pending = UINT_MAX, leave(SUCCESS);
    if (how != ANSWER) return how;
    if (!text(s, "mig")) return leave(NOT_SUPPORTED);
    *current = *pending = (unsigned)is_on(s, "mig", 0);
    return leave(SUCCESS);
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(handle *h, unsigned int *out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return *out = UINT_MAX, leave(SUCCESS);
    return how == ANSWER ? (*out = text(s, "mig") ? 7 : 0, leave(SUCCESS)) : how;
}

static int card_index(const section *s) {
    for (int i = 0; card(i) >= 0; i++)
        if (&sections[card(i)] == s) return i;
    return -1;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(handle *h, unsigned int index, handle **out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how != ANSWER) return how == GARBAGE ? leave(UNKNOWN) : how;
    int parent = card_index(s);
    for (int i = 1; i < n_sections; i++)
        if (sections[i].parent == parent && index-- == 0) return *out = handle_of(sections[i].uuid), leave(SUCCESS);
    return leave(NOT_FOUND);
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle *h, handle **out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how != ANSWER) return how == GARBAGE ? leave(UNKNOWN) : how;
    int at = s->parent < 0 ? -1 : card(s->parent);
    return at < 0 ? leave(INVALID_ARGUMENT) : (*out = handle_of(sections[at].uuid), leave(SUCCESS));
}

EXPORT int nvmlDeviceIsMigDeviceHandle(handle *h, unsigned int *out) {
    section *s = NULL;
    int how = enter(h, __func__, &s);
    if (how == GARBAGE) return *out = UINT_MAX, leave(SUCCESS);
    return how == ANSWER ? (*out = s->parent >= 0, leave(SUCCESS)) : how;
}
