#include "publish.h"

#include "origin.h"

#define MOST_POSTS 4
#define MOST_BYTES 4096

struct post {
    int fd, is_busy;
    struct buffer in, out;
};

uint32_t published;

static struct publisher publisher;
static struct post posts[MOST_POSTS];
static int post_count;
static char message[MOST_BYTES];

void publish_start(int epoll, const struct publisher *given) {
    publisher = *given;
    if (!publisher.origin_port && !publisher.post_port) die("a publisher needs --origin or --post");
    if (publisher.batch < 1) publisher.batch = 1;
    if (publisher.message_bytes < 60 || publisher.message_bytes > MOST_BYTES) die("--message-bytes must be from 60 to 4096");
    if (publisher.origin_port) {
        origin_start(epoll, publisher.origin_port, publisher.path, publisher.message_bytes);
        return;
    }
    post_count = publisher.posts < MOST_POSTS ? publisher.posts : MOST_POSTS;
    for (int i = 0; i < post_count; i++) {
        posts[i].fd = connect_to(publisher.post_port, 0);
        watch(epoll, EPOLL_CTL_ADD, posts[i].fd, EPOLLIN, &posts[i]);
    }
}

static void make_message(void) {
    size_t bytes = publisher.message_bytes;
    size_t size =
        (size_t)snprintf(message, sizeof message, "\"" MARK "%010u,t:%019lld,", published, (long long)now_ns());
    memset(message + size, 'x', bytes - size - 1);
    message[bytes - 1] = '"';
}

static struct post *free_post(void) {
    for (int i = 0; i < post_count; i++)
        if (!posts[i].is_busy) return &posts[i];
    return NULL;
}

#define RECORD_BEGIN "{\"body\":"
#define APPEND_BEGIN "{\"records\":["

/* Adds an append of a batch: a JSON array of records, each with one message for its body. */
static void add_append(struct post *p) {
    size_t records = (size_t)publisher.batch;
    size_t size = sizeof APPEND_BEGIN - 1 + records * (sizeof RECORD_BEGIN + 1 + publisher.message_bytes) - 1 + 2;
    buffer_print(&p->out,
                 "POST %s HTTP/1.1\r\nHost: bench\r\ns2-basin: %s\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n" APPEND_BEGIN,
                 publisher.post_path, publisher.basin, size);
    for (size_t i = 0; i < records; i++) {
        make_message();
        published++;
        if (i) buffer_add(&p->out, ",", 1);
        buffer_add(&p->out, RECORD_BEGIN, sizeof RECORD_BEGIN - 1);
        buffer_add(&p->out, message, publisher.message_bytes);
        buffer_add(&p->out, "}", 1);
    }
    buffer_add(&p->out, "]}", 2);
}

uint32_t publish_count(void) { return publisher.basin != NULL ? (uint32_t)publisher.batch : 1; }

int can_publish(void) { return publisher.origin_port || free_post() != NULL; }

void publish(void) {
    if (publisher.origin_port) {
        make_message();
        published++;
        origin_publish(message);
        return;
    }
    struct post *p = free_post();
    if (publisher.basin != NULL) {
        add_append(p);
    } else {
        make_message();
        published++;
        buffer_print(&p->out,
                     "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                     publisher.post_path, publisher.message_bytes);
        buffer_add(&p->out, message, publisher.message_bytes);
    }
    p->is_busy = 1;
    if (buffer_send(&p->out, p->fd) < 0) die("the publishing connection was lost");
}

static void take_post(struct post *p) {
    if (buffer_receive(&p->in, p->fd, 4096) < 0) die("the publishing connection was lost");
    size_t whole = whole_message(p->in.data + p->in.start, buffer_size(&p->in), 1);
    if (whole == 0) return;
    if (p->in.data[p->in.start + 9] != '2') die("publishing was refused: %.12s", p->in.data + p->in.start);
    p->in.start += whole;
    p->is_busy = 0;
}

int publish_took(void *whose, uint32_t events) {
    for (int i = 0; i < post_count; i++)
        if (whose == &posts[i]) {
            take_post(whose);
            return 1;
        }
    return origin_took(whose, events);
}
