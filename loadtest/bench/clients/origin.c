#include "origin.h"

enum state { IDLE, SSE, WAITING };

struct reader {
    int fd;
    enum state state;
    int is_blocked;
    size_t at;
    struct buffer in, out;
    struct reader *next;
};

struct origin_counts origin_counts;

static int epoll;
static int listener = -1;
static int listener_tag;
static const char *path;
static size_t message_bytes;
static struct buffer messages;
static size_t count;
static struct reader *readers;

/* As the reference server: no word to caches on reads. */
static const char *CORS = "Access-Control-Allow-Origin: *\r\n";

void origin_start(int at_epoll, int port, const char *at_path, size_t bytes) {
    epoll = at_epoll;
    path = at_path;
    message_bytes = bytes;
    listener = listen_on(port);
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, &listener_tag);
}

static void drop(struct reader *r) {
    for (struct reader **at = &readers; *at != NULL; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    close(r->fd);
    free(r->in.data);
    free(r->out.data);
    free(r);
}

/* The messages from `from` to the tail, with `comma` between them and brackets around. */
static size_t array_size(size_t from) {
    size_t n = count - from;
    return n == 0 ? 2 : n * (message_bytes + 1) + 1;
}

static void add_array(struct buffer *out, size_t from) {
    buffer_add(out, "[", 1);
    for (size_t i = from; i < count; i++) {
        if (i > from) buffer_add(out, ",", 1);
        buffer_add(out, messages.data + i * message_bytes, message_bytes);
    }
    buffer_add(out, "]", 1);
}

/* The events that take a follower to the tail, as one HTTP chunk. */
static void add_events(struct reader *r) {
    char control[160];
    int length = snprintf(control, sizeof control,
                          "event: control\ndata:{\"streamNextOffset\":\"%016zu\",\"streamCursor\":\"1\",\"upToDate\":true}\n\n",
                          count);
    size_t data = r->at < count ? strlen("event: data\ndata:") + array_size(r->at) + 2 : 0;
    buffer_print(&r->out, "%zx\r\n", data + (size_t)length);
    if (data > 0) {
        buffer_add(&r->out, "event: data\ndata:", 17);
        add_array(&r->out, r->at);
        buffer_add(&r->out, "\n\n", 2);
    }
    buffer_add(&r->out, control, (size_t)length);
    buffer_add(&r->out, "\r\n", 2);
    r->at = count;
}

static void add_body(struct reader *r) {
    buffer_print(&r->out,
                 "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Next-Offset: %016zu\r\n"
                 "Stream-Up-To-Date: true\r\nETag: \"live:%zu:%zu\"\r\n%sContent-Length: %zu\r\n\r\n",
                 count, r->at, count, CORS, array_size(r->at));
    add_array(&r->out, r->at);
}

static void flush(struct reader *r) {
    int over = buffer_send(&r->out, r->fd);
    if (over < 0) {
        drop(r);
        return;
    }
    if (over != !r->is_blocked) {
        watch(epoll, EPOLL_CTL_MOD, r->fd, over ? EPOLLIN : EPOLLIN | EPOLLOUT, r);
        r->is_blocked = !over;
    }
}

static void take_request(struct reader *r, const char *head, size_t size) {
    const char *line = memchr(head, '\r', size);
    size_t length = (size_t)(line - head);
    const char *target = memchr(head, ' ', length);
    if (target == NULL || strncmp(target + 1, path, strlen(path)) != 0 || !strchr("? ", target[1 + strlen(path)])) {
        buffer_print(&r->out, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        return;
    }
    if (head[0] == 'H') {
        origin_counts.head++;
        buffer_print(&r->out,
                     "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Next-Offset: %016zu\r\n"
                     "Cache-Control: no-store\r\n%s\r\n", count,
                     CORS);
        return;
    }
    const char *offset = memmem(head, length, "offset=", 7);
    r->at = 0;
    if (offset != NULL) r->at = offset[7] == 'n' ? count : offset[7] == '-' ? 0 : strtoul(offset + 7, NULL, 10);
    if (r->at > count) r->at = count;
    if (memmem(head, length, "live=sse", 8) != NULL) {
        origin_counts.sse++;
        r->state = SSE;
        buffer_print(&r->out,
                     "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                     "Transfer-Encoding: chunked\r\n%s\r\n", CORS);
        add_events(r);
    } else if (memmem(head, length, "live=long-poll", 14) != NULL) {
        origin_counts.long_poll++;
        if (r->at == count) {
            r->state = WAITING;
            return;
        }
        add_body(r);
    } else {
        origin_counts.catch_up++;
        add_body(r);
    }
}

int origin_took(void *whose, uint32_t events) {
    if (listener < 0) return 0;
    if (whose == &listener_tag) {
        int fd = accept_on(listener);
        if (fd < 0) return 1;
        struct reader *r = calloc(1, sizeof *r);
        r->fd = fd;
        r->next = readers;
        readers = r;
        watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, r);
        return 1;
    }
    struct reader *r = readers;
    while (r != NULL && r != whose) r = r->next;
    if (r == NULL) return 0;
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && buffer_receive(&r->in, r->fd, 16384) < 0) {
        drop(r);
        return 1;
    }
    for (;;) {
        size_t size = buffer_size(&r->in);
        const char *head = r->in.data + r->in.start;
        size_t whole = size ? whole_message(head, size, 0) : 0;
        if (whole == 0) break;
        take_request(r, head, whole);
        r->in.start += whole;
    }
    flush(r);
    return 1;
}

void origin_publish(const char *message) {
    buffer_add(&messages, message, message_bytes);
    count++;
    for (struct reader *r = readers, *next; r != NULL; r = next) {
        next = r->next;
        if (r->state == IDLE) continue;
        if (r->state == SSE) add_events(r);
        else add_body(r), r->state = IDLE;
        flush(r);
    }
}

int origin_is_followed(void) {
    for (const struct reader *r = readers; r != NULL; r = r->next)
        if (r->state != IDLE && r->at == count) return 1;
    return 0;
}
