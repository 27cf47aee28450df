/* A bare responder: one thread, epoll, and the same bytes for every request of a method.
 *
 *     respond PORT GET_FILE [HEAD_FILE [POST_FILE]]
 *
 * It is two things at once.  As a server it is the upper bound for what one core can answer: it looks for the end of the
 * head and at the first letter, and writes.  As an origin it costs the machine next to nothing, so that what is measured
 * behind a proxy is the proxy. */
#include "net.h"

struct connection {
    int fd;
    int is_blocked;
    struct buffer in;
    const struct buffer *answer;
    size_t sent;
};

static struct buffer answers[3];
static int epoll;

static void load(struct buffer *into, const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) die("cannot read %s: %s", path, strerror(errno));
    size_t got;
    while ((got = fread(buffer_space(into, 65536), 1, 65536, file)) > 0) into->end += got;
    fclose(file);
}

static const struct buffer *answer_to(char method) {
    switch (method) {
    case 'H': return &answers[1];
    case 'P': return &answers[2];
    default: return &answers[0];
    }
}

/* Sends the answer as far as it goes; whether it is over.  -1 when the client has gone. */
static int go_on(struct connection *c) {
    while (c->sent < c->answer->end) {
        ssize_t sent = send(c->fd, c->answer->data + c->sent, c->answer->end - c->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return -1;
        if (sent < 0) {
            if (!c->is_blocked) watch(epoll, EPOLL_CTL_MOD, c->fd, EPOLLOUT, c);
            c->is_blocked = 1;
            return 0;
        }
        c->sent += (size_t)sent;
    }
    if (c->is_blocked) watch(epoll, EPOLL_CTL_MOD, c->fd, EPOLLIN, c);
    c->is_blocked = 0;
    c->answer = NULL;
    return 1;
}

/* Answers what is complete.  -1 when the client has gone. */
static int answer(struct connection *c) {
    for (;;) {
        if (c->answer != NULL) {
            int over = go_on(c);
            if (over <= 0) return over;
        }
        char *data = c->in.data + c->in.start;
        if (buffer_size(&c->in) == 0) return 0;
        size_t whole = whole_message(data, buffer_size(&c->in), data[0] == 'P');
        if (whole == 0) return 0;
        c->answer = answer_to(data[0]);
        c->sent = 0;
        c->in.start += whole;
    }
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: respond PORT GET_FILE [HEAD_FILE [POST_FILE]]");
    allow_many_files();
    for (int i = 0; i < 3; i++) load(&answers[i], argv[argc > i + 2 ? i + 2 : 2]);
    int listener = listen_on(atoi(argv[1]));
    epoll = epoll_create1(0);
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    struct epoll_event events[256];
    for (;;) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL) {
                int fd = accept_on(listener);
                if (fd < 0) continue;
                c = calloc(1, sizeof *c);
                c->fd = fd;
                watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, c);
                continue;
            }
            int gone = 0;
            if (!c->is_blocked) gone = buffer_receive(&c->in, c->fd, 16384) < 0;
            if (gone || answer(c) < 0) {
                close(c->fd);
                free(c->in.data);
                free(c);
            }
        }
    }
}
