/* Durations in nanoseconds, counted in buckets of 1/64 of a power of two: percentiles to within 1.6 %. */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

struct histogram {
    uint64_t total, counts[64 * 64];
    int64_t largest;
};

static inline int histogram_bucket(int64_t ns) {
    if (ns < 64) return ns < 0 ? 0 : (int)ns;
    int power = 63 - __builtin_clzll((unsigned long long)ns);
    return (power - 5) * 64 + (int)((ns >> (power - 6)) & 63);
}

static inline void histogram_add(struct histogram *h, int64_t ns) {
    h->counts[histogram_bucket(ns)]++;
    h->total++;
    if (ns > h->largest) h->largest = ns;
}

/* The value that `share` of all lie at or below, in nanoseconds. */
static inline int64_t histogram_at(const struct histogram *h, double share) {
    uint64_t wanted = (uint64_t)(share * (double)h->total), seen = 0;
    for (int i = 0; i < 64 * 64; i++) {
        seen += h->counts[i];
        if (seen > wanted) {
            if (i < 64) return i;
            int power = i / 64 + 5;
            return (int64_t)(((uint64_t)(64 + i % 64) << (power - 6)) + ((1ULL << (power - 6)) >> 1));
        }
    }
    return h->largest;
}

#endif
