/* One live stream of JSON messages, served from inside the load client: an event's time of birth and of arrival are then
 * read from one clock in one process.  It speaks as much of Durable Streams as a reader needs: HEAD, catch-up, long-poll
 * and SSE, with offsets that count messages.  Other paths are 404: a server may still look for the stream of an earlier run. */
#ifndef ORIGIN_H
#define ORIGIN_H

#include "net.h"

struct origin_counts {
    unsigned long sse, long_poll, catch_up, head;
};

extern struct origin_counts origin_counts;

/* `path` has no query; `message_bytes` is the length of every message. */
void origin_start(int epoll, int port, const char *path, size_t message_bytes);

/* Whether an epoll event's pointer is the origin's; if so it has been dealt with. */
int origin_took(void *whose, uint32_t events);

/* Append one message and send it to whoever follows. */
void origin_publish(const char *message);

/* Whether somebody follows the stream live, having everything there is. */
int origin_is_followed(void);

#endif
