/* Sockets, growing buffers and the clock, for the load clients.  Everything is on loopback, does not block once it is
 * connected, and ends the process with one line on stderr when the machine refuses something: a benchmark has no use for half a
 * result. */
#ifndef NET_H
#define NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static inline int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline void allow_many_files(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static inline struct sockaddr_in loopback(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static inline int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in at = loopback(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 4096) < 0)
        die("cannot listen on port %d: %s", port, strerror(errno));
    return fd;
}

/* Connections are reset when they are closed: thousands in TIME_WAIT would use up the ports.  `receive_bytes` is the
 * size of the kernel's buffer, 0 for the usual. */
static inline int connect_to(int port, int receive_bytes) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0) die("cannot open a socket: %s", strerror(errno));
    struct sockaddr_in at = loopback(port);
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
        die("cannot connect to port %d: %s", port, strerror(errno));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static inline int accept_on(int listener) {
    int one = 1;
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static inline void watch(int epoll, int operation, int fd, uint32_t events, void *whose) {
    struct epoll_event event = {.events = events, .data.ptr = whose};
    if (epoll_ctl(epoll, operation, fd, &event) < 0) die("epoll: %s", strerror(errno));
}

/* Bytes that grow at the end and are taken from the front. */
struct buffer {
    char *data;
    size_t start, end, room;
};

static inline size_t buffer_size(const struct buffer *b) { return b->end - b->start; }

static inline char *buffer_space(struct buffer *b, size_t more) {
    if (b->start == b->end) b->start = b->end = 0;
    if (b->end + more > b->room) {
        memmove(b->data, b->data + b->start, b->end - b->start);
        b->end -= b->start;
        b->start = 0;
        if (b->end + more > b->room) {
            b->room = (b->end + more) * 2;
            b->data = realloc(b->data, b->room);
            if (b->data == NULL) die("out of memory");
        }
    }
    return b->data + b->end;
}

static inline void buffer_add(struct buffer *b, const void *data, size_t size) {
    memcpy(buffer_space(b, size), data, size);
    b->end += size;
}

static inline void buffer_print(struct buffer *b, const char *format, ...) {
    va_list args;
    char text[1024];
    va_start(args, format);
    int size = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    buffer_add(b, text, (size_t)size);
}

/* Sends what is there; whether all of it went.  -1 when the other side has gone. */
static inline int buffer_send(struct buffer *b, int fd) {
    while (b->start < b->end) {
        ssize_t sent = send(fd, b->data + b->start, b->end - b->start, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN ? 0 : -1;
        b->start += (size_t)sent;
    }
    return 1;
}

/* Receives what is there, up to `most` bytes.  -1 when the other side has gone, else the number of bytes. */
static inline ssize_t buffer_receive(struct buffer *b, int fd, size_t most) {
    ssize_t got = recv(fd, buffer_space(b, most), most, 0);
    if (got == 0) return -1;
    if (got < 0) return errno == EAGAIN ? 0 : -1;
    b->end += (size_t)got;
    return got;
}

/* A field's value in the head that begins at `head`, NULL where it is missing.  `name` is given with its colon. */
static inline const char *field(const char *head, size_t size, const char *name) {
    size_t length = strlen(name);
    const char *at = head, *end = head + size;
    while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        at++;
        if ((size_t)(end - at) > length && strncasecmp(at, name, length) == 0) {
            at += length;
            while (at < end && *at == ' ') at++;
            return at;
        }
    }
    return NULL;
}

/* The length of a whole message (head and body) at the front, 0 while it is not whole.  `has_body`: a head without
 * Content-Length and Transfer-Encoding means an empty body otherwise. */
static inline size_t whole_message(const char *data, size_t size, int has_body) {
    const char *blank = memmem(data, size, "\r\n\r\n", 4);
    if (blank == NULL) return 0;
    size_t head = (size_t)(blank - data) + 4;
    if (!has_body) return head;
    const char *value = field(data, head, "content-length:");
    if (value != NULL) {
        size_t whole = head + strtoul(value, NULL, 10);
        return size >= whole ? whole : 0;
    }
    if (field(data, head, "transfer-encoding:") == NULL) return head;
    const char *last = memmem(data + head, size - head, "\r\n0\r\n\r\n", 7);
    if (last != NULL) return (size_t)(last - data) + 7;
    return size - head >= 5 && memcmp(data + head, "0\r\n\r\n", 5) == 0 ? head + 5 : 0;
}

/* An answer of so many bytes on one line, as far as a message has room for it. */
static inline const char *on_one_line(const char *answer, size_t size) {
    static char line[600];
    size_t length = size < sizeof line - 1 ? size : sizeof line - 1;
    for (size_t i = 0; i < length; i++) line[i] = answer[i] < ' ' || answer[i] > '~' ? ' ' : answer[i];
    line[length] = 0;
    return line;
}

#endif
