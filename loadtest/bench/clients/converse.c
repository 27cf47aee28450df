/* Conversations: streams of their own, each appended to by one idempotent producer and followed by SSE readers.
 *
 *     converse --port PORT --path PREFIX --conversations N --readers M --gap-us US --sections FILE ...
 *
 * Creates the streams PREFIX/0 to PREFIX/N-1 at the server under test, has M readers follow each, and appends a message to
 * each every US microseconds.  The appends of different streams are spread evenly over that time.  A producer sends one
 * append at a time; if an append is late because the last one is not acknowledged yet, its delay counts from when it was
 * due.  Every reader is to get every message, in order.
 *
 * Each reader and each producer is a client of its own: their header sections are read from a file (sections.h).
 *
 * Prints, as one line of JSON, the acknowledged appends, the deliveries, the delay from when an append was due to its
 * arrival, and the processor time in the window: of the server, of its origin (--origin-pid) and of this process. */
#include <getopt.h>
#include <sys/timerfd.h>

#include "histogram.h"
#include "net.h"
#include "processor.h"
#include "publish.h"
#include "sections.h"

#define STAMP "{\"n\":\"<n:%010u,t:%019lld>\",\"text\":\"%s\"}"
#define TEXT "A language model says a few words at a time, and its reader sees them as they come."
#define PATIENCE_NS 20000000000

enum kind { READER, PRODUCER, TIMER };

struct client {
    enum kind kind;
    int fd, conversation, number;
    struct buffer in;
    size_t chunk_left;    /* of a reader: bytes of the chunk that have not come */
    struct buffer body;   /* of a reader: the body without its chunk sizes, from the last whole message on */
    int has_head, is_up_to_date;
    uint32_t next;        /* the number of the next message */
    int is_waiting;       /* of a producer: for an answer */
    int64_t due;          /* of a producer: when its next append is due */
};

static int port, conversations = 1, readers = 1, core = -1;
static double seconds = 2, warmup = 1;
static int64_t gap_ns = 50000000;
static const char *prefix = "/";

static int epoll, timer;
static struct client *producers, *all_readers, clock_client = {.kind = TIMER};
static struct histogram delays;
static uint64_t appends, deliveries;
static int are_ready, is_counting;

static clockid_t origin_clock;
static int has_origin;

static int64_t origin_ns(void) {
    struct timespec ts;
    if (!has_origin) return 0;
    if (clock_gettime(origin_clock, &ts) < 0) die("the origin has gone");
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void send_all(struct client *c, const char *text, int size) {
    if (send(c->fd, text, (size_t)size, MSG_NOSIGNAL) != size) die("a request could not be sent: %s", strerror(errno));
}

/* -- readers */

static void follow(struct client *r) {
    char request[2048];
    struct section own = section_of(r->number, "Host: bench\r\n");
    int size = snprintf(request, sizeof request, "GET %s/%d?live=sse&offset=-1 HTTP/1.1\r\n%.*s\r\n", prefix, r->conversation,
                        own.size, own.text);
    if (size >= (int)sizeof request) die("a header section is too long");
    r->fd = connect_to(port, 0);
    watch(epoll, EPOLL_CTL_ADD, r->fd, EPOLLIN, r);
    send_all(r, request, size);
}

static void take_head(struct client *r) {
    const char *head = r->in.data + r->in.start;
    const char *blank = memmem(head, buffer_size(&r->in), "\r\n\r\n", 4);
    if (blank == NULL) return;
    if (memcmp(head + 9, "200", 3) != 0) die("a reader was answered %s", on_one_line(head, buffer_size(&r->in)));
    r->in.start += (size_t)(blank - head) + 4;
    r->has_head = 1;
}

/* Moves what has come of the body, without its chunk sizes. */
static void take_chunks(struct client *r) {
    while (buffer_size(&r->in) > 0) {
        char *at = r->in.data + r->in.start;
        if (r->chunk_left > 0) {
            size_t size = buffer_size(&r->in) < r->chunk_left ? buffer_size(&r->in) : r->chunk_left;
            buffer_add(&r->body, at, size);
            r->in.start += size;
            r->chunk_left -= size;
            continue;
        }
        if (at[0] == '\r' || at[0] == '\n') {
            r->in.start++; /* the end of the last chunk */
            continue;
        }
        const char *line = memmem(at, buffer_size(&r->in), "\r\n", 2);
        if (line == NULL) return;
        r->chunk_left = strtoul(at, NULL, 16);
        if (r->chunk_left == 0) die("a reader's answer has ended");
        r->in.start += (size_t)(line - at) + 2;
    }
}

static void take_messages(struct client *r) {
    int64_t now = now_ns();
    const char *mark;
    while ((mark = memmem(r->body.data + r->body.start, buffer_size(&r->body), MARK, MARK_BYTES)) != NULL &&
           r->body.data + r->body.end - mark >= STAMP_BYTES) {
        uint32_t number = number_of(mark);
        if (number != r->next) die("a reader got message %u in place of %u", number, r->next);
        r->next++;
        deliveries++;
        if (is_counting) histogram_add(&delays, now - birth_of(mark));
        r->body.start = (size_t)(mark - r->body.data) + STAMP_BYTES;
    }
    if (!r->is_up_to_date && memmem(r->body.data + r->body.start, buffer_size(&r->body), "\"upToDate\":true", 15)) {
        r->is_up_to_date = 1;
        are_ready++;
    }
    /* The rest may have the beginning of a stamp. */
    if (mark == NULL && buffer_size(&r->body) > 4096) r->body.start = r->body.end - MARK_BYTES;
}

static void read_on(struct client *r) {
    if (buffer_receive(&r->in, r->fd, 16384) < 0) die("a reader was sent away");
    if (!r->has_head) take_head(r);
    if (r->has_head) {
        take_chunks(r);
        take_messages(r);
    }
}

/* -- producers */

static void write_to(struct client *p, const char *method, const char *more, const char *body) {
    char request[4096];
    struct section own = section_of(p->number, "Host: bench\r\n");
    int size = snprintf(request, sizeof request,
                        "%s %s/%d HTTP/1.1\r\n%.*sContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n%s", method,
                        prefix, p->conversation, own.size, own.text, more, strlen(body), body);
    if (size >= (int)sizeof request) die("a request is too long");
    send_all(p, request, size);
}

static void append(struct client *p) {
    char body[512], producer[160];
    snprintf(body, sizeof body, STAMP, p->next, (long long)p->due, TEXT);
    snprintf(producer, sizeof producer, "Producer-Id: model-%d\r\nProducer-Epoch: 0\r\nProducer-Seq: %u\r\n", p->conversation,
             p->next);
    write_to(p, "POST", producer, body);
    p->next++;
    p->due += gap_ns;
    p->is_waiting = 1;
}

/* The answer, whole; NULL while it is not. */
static const char *answer_of(struct client *p, size_t *whole) {
    if (buffer_receive(&p->in, p->fd, 16384) < 0) die("a producer was sent away");
    *whole = whole_message(p->in.data + p->in.start, buffer_size(&p->in), 1);
    return *whole ? p->in.data + p->in.start : NULL;
}

static void take_answer(struct client *p) {
    size_t whole;
    const char *answer = answer_of(p, &whole);
    if (answer == NULL) return;
    /* 200: new to the producer's state; 204: appended. */
    if (memcmp(answer + 9, "20", 2) != 0) die("a producer was answered %s", on_one_line(answer, whole));
    p->in.start += whole;
    p->is_waiting = 0;
    appends++;
    if (now_ns() >= p->due) append(p);
}

static void create(struct client *p) {
    struct epoll_event event;
    size_t whole;
    const char *answer;
    p->fd = connect_to(port, 0);
    write_to(p, "PUT", "", "[]");
    watch(epoll, EPOLL_CTL_ADD, p->fd, EPOLLIN, p);
    for (int64_t began = now_ns(); (answer = answer_of(p, &whole)) == NULL; epoll_wait(epoll, &event, 1, 100))
        if (now_ns() - began > PATIENCE_NS) die("a stream was not created");
    if (memcmp(answer + 9, "201", 3) != 0) die("a producer was answered %s", on_one_line(answer, whole));
    p->in.start += whole;
}

/* -- all of them */

static int64_t next_due(void) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < conversations; i++)
        if (!producers[i].is_waiting && producers[i].due < next) next = producers[i].due;
    return next;
}

static void append_due(void) {
    int64_t now = now_ns(), next;
    for (int i = 0; i < conversations; i++)
        if (!producers[i].is_waiting && producers[i].due <= now) append(&producers[i]);
    if ((next = next_due()) == INT64_MAX) return;
    struct itimerspec at = {.it_value = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void step(int timeout_ms) {
    static struct epoll_event events[1024];
    int n = epoll_wait(epoll, events, 1024, timeout_ms);
    for (int i = 0; i < n; i++) {
        struct client *c = events[i].data.ptr;
        uint64_t times;
        if (c->kind == READER)
            read_on(c);
        else if (c->kind == PRODUCER)
            take_answer(c);
        else if (read(timer, &times, sizeof times) < 0 && errno != EAGAIN)
            die("timerfd: %s", strerror(errno));
    }
}

static void open_all(void) {
    producers = calloc((size_t)conversations, sizeof *producers);
    all_readers = calloc((size_t)(conversations * readers), sizeof *all_readers);
    for (int i = 0; i < conversations; i++) {
        producers[i] = (struct client){.kind = PRODUCER, .conversation = i, .number = conversations * readers + i};
        create(&producers[i]);
    }
    for (int i = 0; i < conversations * readers; i++) {
        all_readers[i] = (struct client){.kind = READER, .conversation = i % conversations, .number = i};
        follow(&all_readers[i]);
        for (int64_t began = now_ns(); are_ready < i; step(100))
            if (now_ns() - began > PATIENCE_NS) die("only %d readers came to the tail", are_ready);
    }
    for (int64_t began = now_ns(); are_ready < conversations * readers; step(100))
        if (now_ns() - began > PATIENCE_NS) die("only %d of %d readers came to the tail", are_ready, conversations * readers);
}

static int converse(void) {
    struct used before = {0};
    uint64_t appends_before = 0, deliveries_before = 0;
    int64_t began = now_ns(), origin_before = 0;
    for (int i = 0; i < conversations; i++) producers[i].due = began + gap_ns * i / conversations;
    for (;;) {
        int64_t now = now_ns();
        if (!is_counting && now - began >= (int64_t)(warmup * 1e9)) {
            is_counting = 1;
            appends_before = appends, deliveries_before = deliveries;
            origin_before = origin_ns();
            before = used_now(core);
        }
        if (is_counting && now - before.at >= (int64_t)(seconds * 1e9)) break;
        append_due();
        step(100);
    }
    printf("{\"appends\": %llu, \"deliveries\": %llu, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"origin_s\": %.6f, ",
           (unsigned long long)(appends - appends_before), (unsigned long long)(deliveries - deliveries_before),
           (double)histogram_at(&delays, .5) / 1e6, (double)histogram_at(&delays, .99) / 1e6,
           (double)(origin_ns() - origin_before) / 1e9);
    print_used(before, core);
    printf("}\n");
    return 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"port", 1, 0, 'p'},    {"path", 1, 0, 'q'},   {"conversations", 1, 0, 'n'}, {"readers", 1, 0, 'r'}, {"seconds", 1, 0, 's'},
        {"warmup", 1, 0, 'W'},  {"gap-us", 1, 0, 'g'}, {"pid", 1, 0, 'P'},           {"origin-pid", 1, 0, 'O'},
        {"core", 1, 0, 'c'},    {"sections", 1, 0, 'H'}, {0, 0, 0, 0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'q': prefix = optarg; break;
        case 'n': conversations = atoi(optarg); break;
        case 'r': readers = atoi(optarg); break;
        case 's': seconds = atof(optarg); break;
        case 'W': warmup = atof(optarg); break;
        case 'g': gap_ns = atoll(optarg) * 1000; break;
        case 'P': server_has(atoi(optarg)); break;
        case 'O': has_origin = clock_getcpuclockid(atoi(optarg), &origin_clock) == 0; break;
        case 'c': core = atoi(optarg); break;
        case 'H': sections_load(optarg); break;
        default: return 2;
        }
    }
    if (!port || conversations < 1) die("converse needs --port and conversations");
    allow_many_files();
    epoll = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    watch(epoll, EPOLL_CTL_ADD, timer, EPOLLIN, &clock_client);
    open_all();
    return converse();
}
