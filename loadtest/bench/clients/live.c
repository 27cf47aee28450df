/* Live readers by the thousand, and the one writer they wait for, in one thread.
 *
 *     live fanout|wake|idle --port PORT --path TARGET --subscribers N (--origin PORT | --post PORT --post-path TARGET) ...
 *
 * fanout  opens N SSE connections and publishes so that at most --window events have not reached everybody and at least
 *         --gap-us lie between two.  A window of 1 spaces events out; a large one saturates the server.  Prints
 *         deliveries, seconds and the delay from publishing to arrival.
 *         With --stalled, so many more connections are open that never read.
 * wake    has N long-polls wait, publishes one event, and prints when the first and the last answer were there; --rounds
 *         times on the same connections.
 * idle    opens N live readers (--mode sse|longpoll), prints a line with what that took, and holds them until its standard
 *         input ends.
 *
 * With --tls the readers speak TLS.
 *
 * Every result has the processor time of the server's processes (--pid, once for each) and of this one.
 *
 * With --origin it serves the stream itself on that port (origin.c) and publishing is writing to whoever follows;
 * with --post it publishes to the server under test by POST, one at a time on each of a few connections; with --basin as
 * well, the readers read an S2 stream of that basin, and a POST appends --batch messages to it.  Every message carries
 * its number and its time of birth; with --origin a number that is skipped or repeated ends the run.
 *
 * The result is one line of JSON on stdout. */
#include <getopt.h>

#include "admission.h"
#include "histogram.h"
#include "link.h"
#include "net.h"
#include "origin.h"
#include "processor.h"
#include "publish.h"
#include "sections.h"

#define BATCH 256
#define STILL_NS 8000000 /* of processor time in a quarter of a second: its timers */

static int port, origin_port, subscribers = 1, window = 1, core = -1, rounds = 3, stalled;
static int is_long_poll;
static double seconds = 2, warmup = 0.5;
static int64_t gap_ns;
static const char *path = "/", *basin;

static int epoll;

static uint32_t complete;
static uint32_t *arrived; /* how many readers have event n, at n modulo its size */
static uint32_t arrived_mask;

/* -- reading ------------------------------------------------------------------------------------------------------- */

struct subscriber {
    struct link link;
    uint32_t seen;           /* the next number expected */
    uint8_t is_sent, is_open, is_answered, carried;
    char carry[STAMP_BYTES]; /* what may be the beginning of a message */
    char offset[64];
    struct buffer in;
};
static struct subscriber *all;
static int sent_count, open_count, answered_count;

static struct histogram delays;
static uint64_t deliveries;
static int is_counting;
static int64_t first_ns, last_ns;

static void arrive(struct subscriber *s, const char *at, int64_t now) {
    uint32_t number = number_of(at);
    if (origin_port && number != s->seen) die("a reader got message %u in place of %u", number, s->seen);
    s->seen++;
    arrived[number & arrived_mask]++;
    if (is_counting) {
        deliveries++;
        histogram_add(&delays, now - birth_of(at));
    }
}

static void request(struct subscriber *s) {
    char text[2048];
    int size;
    static int asked;
    struct section own = section_of(asked++, "Host: bench\r\n");
    if (origin_port)
        size = snprintf(text, sizeof text, "GET %s?offset=%s&live=%s HTTP/1.1\r\n%.*s\r\n", path, s->offset,
                        is_long_poll ? "long-poll" : "sse", own.size, own.text);
    else
        size = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: bench\r\nAccept: %s\r\n%s%s%s\r\n", path,
                        is_long_poll ? "*/*" : "text/event-stream", basin ? "s2-basin: " : "", basin ? basin : "",
                        basin ? "\r\n" : "");
    if (!link_send(s->link, text, (size_t)size)) die("a request could not be sent: %s", strerror(errno));
    if (!s->is_sent) sent_count++;
    s->is_sent = 1;
}

static char chunk[1 << 20];

static void read_events(struct subscriber *s) {
    memcpy(chunk, s->carry, s->carried);
    ssize_t got = link_receive(s->link, chunk + s->carried, sizeof chunk - s->carried);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("a reader was sent away, %u of %u there", open_count, (unsigned)subscribers);
    if (!s->is_open) {
        if (got < 12 || memcmp(chunk + 9, "200", 3) != 0) die("a reader was answered %.12s", chunk);
        s->is_open = 1;
        open_count++;
    }
    const char *at = chunk, *end = chunk + s->carried + got, *mark;
    int64_t now = now_ns();
    while ((mark = memmem(at, (size_t)(end - at), MARK, MARK_BYTES)) != NULL && end - mark >= STAMP_BYTES) {
        arrive(s, mark, now);
        at = mark + STAMP_BYTES;
    }
    size_t rest = (size_t)(end - at);
    if (rest > STAMP_BYTES - 1) rest = STAMP_BYTES - 1;
    memcpy(s->carry, end - rest, rest);
    s->carried = (uint8_t)rest;
}

static void read_answer(struct subscriber *s) {
    ssize_t got = link_receive(s->link, buffer_space(&s->in, 4096), 4096);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("a waiting reader was sent away");
    s->in.end += (size_t)got;
    char *head = s->in.data + s->in.start;
    size_t whole = whole_message(head, buffer_size(&s->in), 1);
    if (whole == 0) return;
    if (memcmp(head + 9, "200", 3) != 0) die("a waiting reader was answered %.12s", head);
    if (memmem(head, whole, MARK, MARK_BYTES) == NULL) die("a waiting reader was answered without the message");
    const char *offset = field(head, whole, "stream-next-offset:");
    if (offset != NULL) {
        size_t size = strcspn(offset, "\r\n");
        if (size >= sizeof s->offset) die("an offset is too long");
        memcpy(s->offset, offset, size);
        s->offset[size] = 0;
    }
    s->in.start += whole;
    int64_t now = now_ns();
    if (!s->is_answered) answered_count++;
    s->is_answered = 1;
    if (answered_count == 1) first_ns = now;
    last_ns = now;
}

static int is_standard_input_over;

static void step(int timeout_ms) {
    static struct epoll_event events[1024];
    int n = epoll_wait(epoll, events, 1024, timeout_ms);
    for (int i = 0; i < n; i++) {
        void *whose = events[i].data.ptr;
        if (whose == &is_standard_input_over) {
            is_standard_input_over = read(0, chunk, 1024) <= 0;
        } else if ((char *)whose >= (char *)all && (char *)whose < (char *)(all + subscribers)) {
            struct subscriber *s = whose;
            if (is_long_poll) read_answer(s);
            else read_events(s);
        } else {
            publish_took(whose, events[i].events);
        }
    }
}

/* Waits until the server has had nothing to do for a while, which is when all readers wait. */
static void settle(void) {
    int64_t began = now_ns(), still_since = began, busy = server_ns();
    while (now_ns() - still_since < 250000000) {
        step(20);
        if (server_ns() - busy > STILL_NS || (origin_port && !origin_is_followed())) {
            still_since = now_ns();
            busy = server_ns();
        }
        if (now_ns() - began > 20000000000) die("the server did not come to rest with %d readers", sent_count);
    }
}

static void open_all(void) {
    all = calloc((size_t)subscribers, sizeof *all);
    for (int i = 0; i < subscribers; i++) strcpy(all[i].offset, "-1");
    for (int i = 0; i < subscribers; i++) {
        all[i].link = link_to(port, 0);
        watch(epoll, EPOLL_CTL_ADD, all[i].link.fd, EPOLLIN, &all[i]);
        request(&all[i]);
        if ((i + 1) % BATCH != 0 && i + 1 < subscribers) continue;
        /* In batches, so that no listener's queue overflows: a lost SYN costs a second. */
        int64_t began = now_ns();
        while (is_long_poll ? now_ns() - began < 30000000 : open_count <= i) {
            step(5);
            if (now_ns() - began > 20000000000) die("only %d of %d readers were let in", open_count, subscribers);
        }
    }
    for (int i = 0; i < stalled; i++) {
        struct subscriber unread = {.offset = "-1", .link = link_to(port, 4096)};
        request(&unread);
        step(0);
    }
    settle();
}

static int work_fanout(void) {
    int64_t next = now_ns(), began = next;
    uint32_t published_before = 0;
    struct used before = {0};
    for (;;) {
        while (complete < published && arrived[complete & arrived_mask] == (uint32_t)subscribers) complete++;
        int64_t now = now_ns();
        if (!is_counting && now - began >= (int64_t)(warmup * 1e9)) {
            is_counting = 1;
            published_before = published;
            before = used_now(core);
        }
        if (is_counting && now - before.at >= (int64_t)(seconds * 1e9)) break;
        if (published - complete + publish_count() > (uint32_t)window || now < next || !can_publish()) {
            step(now < next && next - now < 1000000 ? 0 : 1);
            continue;
        }
        for (uint32_t i = 0; i < publish_count(); i++) arrived[(published + i) & arrived_mask] = 0;
        publish();
        next = now + gap_ns;
        step(0);
    }
    printf("{\"deliveries\": %llu, \"events\": %u, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"max_ms\": %.4f, "
           "\"upstream_live\": %lu, ",
           (unsigned long long)deliveries, published - published_before, (double)histogram_at(&delays, .5) / 1e6,
           (double)histogram_at(&delays, .99) / 1e6, (double)delays.largest / 1e6,
           origin_counts.sse + origin_counts.long_poll);
    print_used(before, core);
    printf("}\n");
    return 0;
}

static int work_wake(void) {
    printf("{\"rounds\": [");
    for (int round = 0; round < rounds; round++) {
        if (round > 0) {
            for (int i = 0; i < subscribers; i++) {
                request(&all[i]);
                if (i % BATCH == 0) step(0);
            }
            settle();
        }
        answered_count = 0;
        for (int i = 0; i < subscribers; i++) all[i].is_answered = 0;
        struct origin_counts before = origin_counts;
        int64_t began = now_ns();
        publish();
        while (answered_count < subscribers) {
            step(1000);
            if (now_ns() - began > 20000000000) die("%d of %d readers were woken", answered_count, subscribers);
        }
        unsigned long upstream = origin_counts.sse - before.sse + origin_counts.long_poll - before.long_poll +
                                 origin_counts.catch_up - before.catch_up;
        printf("%s{\"first_ms\": %.4f, \"last_ms\": %.4f, \"upstream\": %lu}", round ? ", " : "",
               (double)(first_ns - began) / 1e6, (double)(last_ns - began) / 1e6, upstream);
    }
    printf("], \"upstream_live\": %lu}\n", origin_counts.sse + origin_counts.long_poll);
    return 0;
}

static int work_idle(struct used before) {
    printf("{\"open\": %d, \"upstream_live\": %lu, ", is_long_poll ? sent_count - answered_count : open_count,
           origin_counts.sse + origin_counts.long_poll);
    print_used(before, core);
    printf("}\n");
    fflush(stdout);
    watch(epoll, EPOLL_CTL_ADD, 0, EPOLLIN, &is_standard_input_over);
    while (!is_standard_input_over) step(1000);
    return 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"port", 1, 0, 'p'},   {"path", 1, 0, 'q'},    {"subscribers", 1, 0, 'n'}, {"window", 1, 0, 'w'},
        {"origin", 1, 0, 'o'}, {"post", 1, 0, 't'},    {"post-path", 1, 0, 'u'},   {"seconds", 1, 0, 's'},
        {"warmup", 1, 0, 'W'}, {"gap-us", 1, 0, 'g'},  {"pid", 1, 0, 'P'},         {"rounds", 1, 0, 'r'},
        {"core", 1, 0, 'c'},   {"stalled", 1, 0, 'S'}, {"message-bytes", 1, 0, 'b'}, {"mode", 1, 0, 'm'},  {"tls", 0, 0, 'T'},
        {"basin", 1, 0, 'B'},  {"batch", 1, 0, 'N'},   {"sections", 1, 0, 'H'}, {0, 0, 0, 0}};
    if (argc < 2) die("usage: live fanout|wake|idle --port PORT ...");
    const char *work = argv[1];
    struct publisher publisher = {.post_path = "/", .message_bytes = 100};
    optind = 2;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'q': path = optarg; break;
        case 'n': subscribers = atoi(optarg); break;
        case 'w': window = atoi(optarg); break;
        case 'o': origin_port = publisher.origin_port = atoi(optarg); break;
        case 't': publisher.post_port = atoi(optarg); break;
        case 'u': publisher.post_path = optarg; break;
        case 's': seconds = atof(optarg); break;
        case 'W': warmup = atof(optarg); break;
        case 'g': gap_ns = atoll(optarg) * 1000; break;
        case 'P': server_has(atoi(optarg)); break;
        case 'r': rounds = atoi(optarg); break;
        case 'c': core = atoi(optarg); break;
        case 'S': stalled = atoi(optarg); break;
        case 'b': publisher.message_bytes = (size_t)atol(optarg); break;
        case 'T': links_use_tls("http/1.1"); break;
        case 'B': basin = publisher.basin = optarg; break;
        case 'N': publisher.batch = atoi(optarg); break;
        case 'H': sections_load(optarg); break;
        case 'm': is_long_poll = strcmp(optarg, "longpoll") == 0; break;
        default: return 2;
        }
    }
    if (!port) die("live needs --port");
    publisher.path = path;
    publisher.posts = window;
    if (strcmp(work, "wake") == 0) is_long_poll = 1;
    for (arrived_mask = 1; arrived_mask < 4u * (uint32_t)window; arrived_mask *= 2) {}
    arrived = calloc(arrived_mask--, sizeof *arrived);
    allow_many_files();
    epoll = epoll_create1(0);
    publish_start(epoll, &publisher);
    if (origin_port) wait_for_admission(port, path, step);
    struct used before = used_now(core);
    open_all();
    if (strcmp(work, "wake") == 0) return work_wake();
    if (strcmp(work, "idle") == 0) return work_idle(before);
    return work_fanout();
}
