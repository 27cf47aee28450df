/* The one writer: messages that carry their number and their time of birth, published to the stream that origin.c serves
 * or, by POST, to the server under test or to its S2 origin, one POST at a time on each of a few connections.
 *
 * A message is a string in JSON without a character to be escaped, so that its stamp is the same bytes in JSON, in an S2
 * record, and in whatever encoding of it a reader gets. */
#ifndef PUBLISH_H
#define PUBLISH_H

#include "net.h"

#define MARK "<n:"
#define MARK_BYTES 3
#define STAMP_BYTES 35 /* MARK, ten digits, ,t: and nineteen digits */

/* `origin_port` is where origin.c serves `path`; where it is 0, `post_port` is the server's and `post_path` its target for
 * POST.  `message_bytes` is the length of every message, `posts` how many may be on their way at once.  With `basin` a POST
 * appends to an S2 stream of that basin, `batch` messages each. */
struct publisher {
    int origin_port, post_port, posts, batch;
    const char *path, *post_path, *basin;
    size_t message_bytes;
};

extern uint32_t published;

void publish_start(int epoll, const struct publisher *publisher);

/* Whether an epoll event's pointer is the publisher's or the origin's; if so it has been dealt with. */
int publish_took(void *whose, uint32_t events);

int can_publish(void);

/* How many messages `publish` publishes. */
uint32_t publish_count(void);

void publish(void);

/* A decimal number of so many digits. */
static inline uint64_t digits(const char *at, int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value = value * 10 + (uint64_t)(at[i] - '0');
    return value;
}

/* The message's number, and when it was born; `mark` is where it begins. */
static inline uint32_t number_of(const char *mark) { return (uint32_t)digits(mark + MARK_BYTES, 10); }
static inline int64_t birth_of(const char *mark) { return (int64_t)digits(mark + 16, 19); }

#endif
