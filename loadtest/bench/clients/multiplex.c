/* SSE readers over HTTP/2: many streams on few connections, as browsers have them; with --basin read sessions of S2.
 *
 *     multiplex --port PORT --path TARGET --subscribers N --streams M (--origin PORT | --post PORT --post-path TARGET) ...
 *
 * N readers of one stream, M to a connection, over TLS with --tls, else with prior knowledge.  What is published, and how, is
 * as in live.c: at most --window messages have not reached everybody.  A reader's numbers must follow one another, but for
 * those of an S2 stream, where appends that are under way together may come in any order.
 *
 * It speaks as much of HTTP/2 (RFC 9113) as that takes.  Windows are opened as far as they go, so that what is measured is
 * never waiting for this client's credit; requests are header literals without indexing (RFC 7541 section 6.2.2).
 *
 * Prints, as one line of JSON, the deliveries and the processor time of the server and of this process in the window. */
#include <getopt.h>

#include "admission.h"
#include "histogram.h"
#include "link.h"
#include "origin.h"
#include "processor.h"
#include "publish.h"

#define PATIENCE_NS 20000000000
#define MOST_WINDOW 0x7fffffffu
#define FRAME_HEAD 9

enum frame { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };

struct reader {
    uint32_t seen;
    uint8_t is_open, has_read, carried;
    char carry[STAMP_BYTES]; /* what may be the beginning of a message */
};

struct connection {
    struct link link;
    struct buffer in;
    struct reader *readers; /* by stream: 1, 3, 5 and so on */
    int count;
};

static int port, origin_port, subscribers = 1, streams = 100, window = 1, core = -1, is_tls;
static double seconds = 2, warmup = 0.5;
static const char *path = "/", *scheme = "http", *basin;

static int epoll;
static struct connection *connections;
static int connection_count, open_count;
static uint32_t complete, *arrived, arrived_mask;
static struct histogram delays;
static uint64_t deliveries;
static int is_counting;

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void add_u32(struct buffer *out, uint32_t value) {
    unsigned char bytes[4] = {value >> 24, value >> 16, value >> 8, value};
    buffer_add(out, bytes, 4);
}

static void add_head(struct buffer *out, size_t size, enum frame type, int flags, uint32_t stream) {
    unsigned char bytes[5] = {size >> 16, size >> 8, size, type, flags};
    buffer_add(out, bytes, 5);
    add_u32(out, stream);
}

/* A literal without indexing, name and value as they are; both shorter than 127. */
static void add_field(struct buffer *out, const char *name, const char *value) {
    unsigned char begin[2] = {0, strlen(name)}, length = strlen(value);
    if (strlen(value) > 126) die("a field is too long");
    buffer_add(out, begin, 2);
    buffer_add(out, name, begin[1]);
    buffer_add(out, &length, 1);
    buffer_add(out, value, length);
}

static void send_all(struct connection *c, struct buffer *out) {
    if (!link_send(c->link, out->data + out->start, buffer_size(out))) die("a request could not be sent");
    out->start = out->end;
}

static void begin(struct connection *c) {
    struct buffer out = {0};
    buffer_add(&out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    add_head(&out, 6, SETTINGS, 0, 0);
    buffer_add(&out, "\0\4", 2); /* SETTINGS_INITIAL_WINDOW_SIZE */
    add_u32(&out, MOST_WINDOW);
    add_head(&out, 4, WINDOW_UPDATE, 0, 0);
    add_u32(&out, MOST_WINDOW - 65535);
    char target[256];
    snprintf(target, sizeof target, origin_port ? "%s?live=sse&offset=-1" : "%s", path);
    for (int i = 0; i < c->count; i++) {
        struct buffer block = {0};
        add_field(&block, ":method", "GET");
        add_field(&block, ":scheme", scheme);
        add_field(&block, ":path", target);
        add_field(&block, ":authority", "bench");
        if (basin != NULL) {
            add_field(&block, "content-type", "s2s/proto");
            add_field(&block, "s2-basin", basin);
        } else {
            add_field(&block, "accept", "text/event-stream");
        }
        add_field(&block, "user-agent", "bench");
        add_head(&out, buffer_size(&block), HEADERS, 5 /* END_STREAM, END_HEADERS */, 2u * (uint32_t)i + 1);
        buffer_add(&out, block.data, buffer_size(&block));
        free(block.data);
    }
    send_all(c, &out);
    free(out.data);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static void read_events(struct reader *r, const char *data, size_t size) {
    static char joined[(1 << 16) + STAMP_BYTES];
    if (r->carried + size > sizeof joined) die("a frame is too long");
    memcpy(joined, r->carry, r->carried);
    memcpy(joined + r->carried, data, size);
    const char *at = joined, *end = joined + r->carried + size, *mark;
    int64_t now = now_ns();
    while ((mark = memmem(at, (size_t)(end - at), MARK, MARK_BYTES)) != NULL && end - mark >= STAMP_BYTES) {
        uint32_t number = number_of(mark);
        if (basin == NULL && r->has_read && number != r->seen) die("a reader got message %u in place of %u", number, r->seen);
        r->has_read = 1;
        r->seen = number + 1;
        arrived[number & arrived_mask]++;
        if (is_counting) {
            deliveries++;
            histogram_add(&delays, now - birth_of(mark));
        }
        at = mark + STAMP_BYTES;
    }
    size_t rest = (size_t)(end - at);
    if (rest > STAMP_BYTES - 1) rest = STAMP_BYTES - 1;
    memcpy(r->carry, end - rest, rest);
    r->carried = (uint8_t)rest;
}

static void acknowledge(struct connection *c, enum frame type, const char *payload, size_t size) {
    struct buffer out = {0};
    add_head(&out, size, type, 1 /* ACK */, 0);
    if (size) buffer_add(&out, payload, size);
    send_all(c, &out);
    free(out.data);
}

static void take_frame(struct connection *c, const unsigned char *head, size_t size) {
    const char *payload = (const char *)head + FRAME_HEAD;
    uint32_t stream = (uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
    int flags = head[4];
    struct reader *r = stream % 2 == 1 && stream / 2 < (uint32_t)c->count ? &c->readers[stream / 2] : NULL;
    switch (head[3]) {
    case DATA:
        if (r == NULL || flags & 8 /* PADDED */) die("data that cannot be read");
        read_events(r, payload, size);
        if (flags & 1) die("a reader was sent away");
        break;
    case HEADERS:
        while (size && (*payload & 0xe0) == 0x20) payload++, size--; /* a table's size */
        if (r == NULL || size == 0 || (unsigned char)*payload != 0x88) die("a reader was answered with an error");
        r->is_open = 1;
        open_count++;
        break;
    case SETTINGS:
        if (!(flags & 1)) acknowledge(c, SETTINGS, NULL, 0);
        break;
    case PING:
        if (!(flags & 1)) acknowledge(c, PING, payload, size);
        break;
    case RST_STREAM:
    case GOAWAY: die("a reader was sent away, by frame %d", head[3]);
    default: break;
    }
}

static void take(struct connection *c) {
    ssize_t got = link_receive(c->link, buffer_space(&c->in, 1 << 18), 1 << 18);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("a connection was lost");
    c->in.end += (size_t)got;
    while (buffer_size(&c->in) >= FRAME_HEAD) {
        const unsigned char *head = (const unsigned char *)c->in.data + c->in.start;
        size_t size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        if (buffer_size(&c->in) < FRAME_HEAD + size) break;
        take_frame(c, head, size);
        c->in.start += FRAME_HEAD + size;
    }
}

static void step(int timeout_ms) {
    static struct epoll_event events[1024];
    int n = epoll_wait(epoll, events, 1024, timeout_ms);
    for (int i = 0; i < n; i++) {
        void *whose = events[i].data.ptr;
        if (!publish_took(whose, events[i].events)) take(whose);
    }
}

static void open_all(void) {
    connection_count = (subscribers + streams - 1) / streams;
    connections = calloc((size_t)connection_count, sizeof *connections);
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[i];
        int left = subscribers - i * streams;
        c->count = left < streams ? left : streams;
        c->readers = calloc((size_t)c->count, sizeof *c->readers);
        c->link = link_to(port, 0);
        watch(epoll, EPOLL_CTL_ADD, c->link.fd, EPOLLIN, c);
        begin(c);
    }
    int64_t began = now_ns();
    while (open_count < subscribers || (origin_port && !origin_is_followed())) {
        step(5);
        if (now_ns() - began > PATIENCE_NS) die("only %d of %d readers were let in", open_count, subscribers);
    }
}

static int fan_out(void) {
    struct used before = {0};
    int64_t began = now_ns();
    for (;;) {
        while (complete < published && arrived[complete & arrived_mask] == (uint32_t)subscribers) complete++;
        int64_t now = now_ns();
        if (!is_counting && now - began >= (int64_t)(warmup * 1e9)) {
            is_counting = 1;
            before = used_now(core);
        }
        if (is_counting && now - before.at >= (int64_t)(seconds * 1e9)) break;
        if (published - complete + publish_count() > (uint32_t)window || !can_publish()) {
            step(1);
            continue;
        }
        for (uint32_t i = 0; i < publish_count(); i++) arrived[(published + i) & arrived_mask] = 0;
        publish();
        step(0);
    }
    printf("{\"deliveries\": %llu, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"upstream_live\": %lu, ", (unsigned long long)deliveries,
           (double)histogram_at(&delays, .5) / 1e6, (double)histogram_at(&delays, .99) / 1e6,
           origin_counts.sse + origin_counts.long_poll);
    print_used(before, core);
    printf("}\n");
    return 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"port", 1, 0, 'p'},      {"path", 1, 0, 'q'},    {"subscribers", 1, 0, 'n'}, {"streams", 1, 0, 'm'}, {"window", 1, 0, 'w'},
        {"origin", 1, 0, 'o'},    {"post", 1, 0, 't'},    {"post-path", 1, 0, 'u'},   {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'W'},
        {"pid", 1, 0, 'P'},       {"core", 1, 0, 'c'},    {"tls", 0, 0, 'T'},         {"basin", 1, 0, 'B'},
        {"batch", 1, 0, 'N'},     {0, 0, 0, 0}};
    struct publisher publisher = {.post_path = "/", .message_bytes = 100};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'q': path = optarg; break;
        case 'n': subscribers = atoi(optarg); break;
        case 'm': streams = atoi(optarg); break;
        case 'w': window = atoi(optarg); break;
        case 'o': origin_port = publisher.origin_port = atoi(optarg); break;
        case 't': publisher.post_port = atoi(optarg); break;
        case 'u': publisher.post_path = optarg; break;
        case 's': seconds = atof(optarg); break;
        case 'W': warmup = atof(optarg); break;
        case 'P': server_has(atoi(optarg)); break;
        case 'c': core = atoi(optarg); break;
        case 'T': is_tls = 1, scheme = "https"; break;
        case 'B': basin = publisher.basin = optarg; break;
        case 'N': publisher.batch = atoi(optarg); break;
        default: return 2;
        }
    }
    if (!port) die("multiplex needs --port");
    publisher.path = path;
    publisher.posts = window;
    for (arrived_mask = 1; arrived_mask < 4u * (uint32_t)window; arrived_mask *= 2) {}
    arrived = calloc(arrived_mask--, sizeof *arrived);
    allow_many_files();
    epoll = epoll_create1(0);
    publish_start(epoll, &publisher);
    if (is_tls) links_use_tls("http/1.1");
    if (origin_port) wait_for_admission(port, path, step);
    if (is_tls) links_use_tls("h2");
    open_all();
    return fan_out();
}
