/* Processor time, in ticks of sysconf(_SC_CLK_TCK), as /proc tells it. */
#ifndef TICKS_H
#define TICKS_H

#include "net.h"

/* The server's processor time in ticks; 0 where no process was named. */
static inline long busy_ticks(int pid) {
    char name[64], text[1024];
    if (!pid) return 0;
    snprintf(name, sizeof name, "/proc/%d/stat", pid);
    FILE *file = fopen(name, "r");
    if (file == NULL) die("the server has gone");
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    const char *at = strrchr(text, ')');
    long user = 0, kernel = 0;
    if (at == NULL || sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &kernel) != 2)
        die("cannot read %s", name);
    return user + kernel;
}

/* Processor time that the server's core has given to anybody, in ticks. */
static inline long core_ticks(int core) {
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
    return sum;
}

#endif
