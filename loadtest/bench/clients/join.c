/* SSE readers that come and go: connect, join at the tail, wait for the first event, leave; and again.
 *
 *     join --port PORT --path TARGET (--origin PORT | --post PORT --post-path TARGET) --concurrency N ...
 *
 * N places are taken by readers in turn, as fast as the server lets them in; one more reader stays all the time, so that the
 * stream is followed and joining is joining.  With --origin the stream has one message and they join behind it; nchan's
 * channel has none and says its greeting.  Who leaves resets the connection: thousands in TIME_WAIT would use up the ports.
 *
 * With --sections the clients' headers differ: they are read from a file (sections.h), and each join takes the next.
 * --queries, behind it, names a file with a query for each section's URL.
 *
 * Prints, as one line of JSON, the joins and the processor time of the server and of this process in the window. */
#include <getopt.h>

#include "admission.h"
#include "net.h"
#include "origin.h"
#include "processor.h"
#include "publish.h"
#include "sections.h"

#define PATIENCE_NS 20000000000

struct reader {
    int fd;
    size_t size;
    char data[4096]; /* a head and the first event */
};

static int port, origin_port, concurrency = 1, core = -1;
static double seconds = 2, warmup = 0.5;
static uint64_t least; /* joins before the window */
static const char *path = "/";

static int epoll;
static struct reader resident, *places;
static int is_resident_there;
static uint64_t joins;
static const char *offset;
static int came;

static void come(struct reader *r) {
    static const char *same = "Host: bench\r\nUser-Agent: bench\r\nAccept: text/event-stream\r\nCache-Control: no-cache\r\n";
    char request[2048];
    struct section own = section_of(came++, same);
    size_t request_size = (size_t)(origin_port ? snprintf(request, sizeof request, "GET %s?%.*slive=sse&offset=%s HTTP/1.1\r\n%.*s\r\n",
                                                          path, own.query_size, own.query, offset, own.size, own.text)
                                               : snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n%.*s\r\n", path, own.size,
                                                          own.text));
    if (request_size >= sizeof request) die("a header section is too long");
    r->fd = connect_to(port, 0);
    r->size = 0;
    watch(epoll, EPOLL_CTL_ADD, r->fd, EPOLLIN, r);
    if (send(r->fd, request, request_size, MSG_NOSIGNAL) != (ssize_t)request_size) die("a request could not be sent");
}

/* Whether the first event is there, whole. */
static int has_event(const struct reader *r) {
    if (r->size < 12) return 0;
    if (memcmp(r->data + 9, "200", 3) != 0) die("a reader was answered %s", on_one_line(r->data, r->size));
    const char *body = memmem(r->data, r->size, "\r\n\r\n", 4);
    return body != NULL && memmem(body + 4, (size_t)(r->data + r->size - body - 4), "\n\n", 2) != NULL;
}

static void take(struct reader *r) {
    if (r == &resident && is_resident_there) r->size = 0; /* a heartbeat */
    ssize_t got = recv(r->fd, r->data + r->size, sizeof r->data - r->size, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("a reader was sent away");
    r->size += (size_t)got;
    if (!has_event(r)) {
        if (r->size == sizeof r->data && !(r == &resident && is_resident_there)) die("the first event is too long");
        return;
    }
    if (r == &resident) {
        is_resident_there = 1;
        return;
    }
    close(r->fd);
    joins++;
    come(r);
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
    if (origin_port) publish();
    offset = "-1";
    come(&resident);
    for (int64_t began = now_ns(); !is_resident_there || (origin_port && !origin_is_followed());) {
        step(5);
        if (now_ns() - began > PATIENCE_NS) die("the first reader was not let in");
    }
    offset = "0000000000000001"; /* behind the one message, as origin.c names it */
    places = calloc((size_t)concurrency, sizeof *places);
    for (int i = 0; i < concurrency; i++) come(&places[i]);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"port", 1, 0, 'p'},    {"path", 1, 0, 'q'},   {"concurrency", 1, 0, 'n'}, {"origin", 1, 0, 'o'}, {"post", 1, 0, 't'},
        {"post-path", 1, 0, 'u'}, {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'W'},     {"pid", 1, 0, 'P'},    {"core", 1, 0, 'c'},
        {"sections", 1, 0, 'H'},  {"queries", 1, 0, 'Q'},  {"least", 1, 0, 'l'}, {0, 0, 0, 0}};
    struct publisher publisher = {.posts = 1, .post_path = "/", .message_bytes = 100};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'q': path = optarg; break;
        case 'n': concurrency = atoi(optarg); break;
        case 'o': origin_port = publisher.origin_port = atoi(optarg); break;
        case 't': publisher.post_port = atoi(optarg); break;
        case 'u': publisher.post_path = optarg; break;
        case 's': seconds = atof(optarg); break;
        case 'W': warmup = atof(optarg); break;
        case 'P': server_has(atoi(optarg)); break;
        case 'c': core = atoi(optarg); break;
        case 'l': least = (uint64_t)atoll(optarg); break;
        case 'H': sections_load(optarg); break;
        case 'Q': queries_load(optarg); break;
        default: return 2;
        }
    }
    if (!port) die("join needs --port");
    publisher.path = path;
    allow_many_files();
    epoll = epoll_create1(0);
    publish_start(epoll, &publisher);
    if (origin_port) wait_for_admission(port, path, step);
    open_all();
    for (int64_t began = now_ns(); joins < least || now_ns() - began < (int64_t)(warmup * 1e9);) {
        step(1);
        if (now_ns() - began > PATIENCE_NS) die("only %llu joins in the warm-up", (unsigned long long)joins);
    }
    uint64_t joins_before = joins;
    struct used before = used_now(core);
    while (now_ns() - before.at < (int64_t)(seconds * 1e9)) step(1);
    printf("{\"joins\": %llu, \"upstream_live\": %lu, ", (unsigned long long)(joins - joins_before),
           origin_counts.sse + origin_counts.long_poll);
    print_used(before, core);
    printf("}\n");
    return 0;
}
