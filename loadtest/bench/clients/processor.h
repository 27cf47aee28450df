/* Processor time: of the server under test, all its processes together, and of its core. */
#ifndef PROCESSOR_H
#define PROCESSOR_H

#include "net.h"

#define MOST_PROCESSES 64

static clockid_t server_clocks[MOST_PROCESSES];
static int server_processes;

/* The server has this process, too. */
static inline void server_has(int pid) {
    if (server_processes == MOST_PROCESSES) die("the server has more than %d processes", MOST_PROCESSES);
    if (clock_getcpuclockid(pid, &server_clocks[server_processes++]) != 0) die("there is no process %d", pid);
}

/* The server's processor time so far, user and kernel; 0 where no process was named. */
static inline int64_t server_ns(void) {
    int64_t sum = 0;
    for (int i = 0; i < server_processes; i++) {
        struct timespec ts;
        if (clock_gettime(server_clocks[i], &ts) < 0) die("the server has gone");
        sum += (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
    }
    return sum;
}

/* This process's own. */
static inline int64_t client_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Processor time that the server's core has given to anybody, in nanoseconds; known to a tick of the kernel's. */
static inline int64_t core_ns(int core) {
    char line[256], name[16];
    long sum = 0, ticks[8];
    snprintf(name, sizeof name, "cpu%d ", core);
    FILE *file = fopen("/proc/stat", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) != 0) continue;
        int n = sscanf(line + strlen(name), "%ld %ld %ld %ld %ld %ld %ld %ld", &ticks[0], &ticks[1], &ticks[2], &ticks[3],
                       &ticks[4], &ticks[5], &ticks[6], &ticks[7]);
        for (int i = 0; i < n; i++)
            if (i != 3 && i != 4) sum += ticks[i]; /* idle, and idle for a disk */
    }
    if (file != NULL) fclose(file);
    return sum * (1000000000 / sysconf(_SC_CLK_TCK));
}

/* What a window of measurement begins and ends with. */
struct used {
    int64_t at, server, core, client;
};

static inline struct used used_now(int core) {
    return (struct used){.at = now_ns(), .server = server_ns(), .core = core_ns(core), .client = client_ns()};
}

/* Prints the window's length and the processor time in it, as members of the result. */
static inline void print_used(struct used since, int core) {
    struct used now = used_now(core);
    printf("\"seconds\": %.6f, \"server_s\": %.6f, \"core_s\": %.6f, \"client_s\": %.6f", (double)(now.at - since.at) / 1e9,
           (double)(now.server - since.server) / 1e9, (double)(now.core - since.core) / 1e9,
           (double)(now.client - since.client) / 1e9);
}

#endif
