/* Long-polls that read on: every reader asks again, from where it stands, as soon as it is answered.
 *
 *     poll --port PORT --path TARGET --subscribers N (--origin PORT | --post PORT --post-path TARGET) ...
 *
 * N clients wait at the tail of one stream, each on a connection of its own that is kept.  Meanwhile messages are published,
 * with --gap-us to twice as much between two, however far the readers have come: as writers do, who do not know them.
 *
 * A reader says where it stands as real ones do.  With --origin the server speaks Durable Streams: the next request has the
 * Stream-Next-Offset of the last answer and echoes its Stream-Cursor.  With --post it is nchan: the last answer's
 * Last-Modified and Etag come back as If-Modified-Since and If-None-Match.  That no message is skipped or repeated is checked
 * in every answer, which is why no coding is asked for.
 *
 * With --sections the clients' headers differ: they are read from a file (sections.h).
 * --queries, behind it, names a file with a query for each client's URL.
 *
 * Prints, as one line of JSON, the answers with messages, the messages in them, the delay from publishing to arrival and the
 * processor time of the server and of this process in the window. */
#include <getopt.h>

#include "admission.h"
#include "histogram.h"
#include "net.h"
#include "origin.h"
#include "processor.h"
#include "publish.h"
#include "sections.h"

#define BATCH 256
#define STILL_NS 8000000 /* of processor time in a quarter of a second: its timers */
#define FIRST_GAP_NS 1000000000
#define PATIENCE_NS 20000000000

struct place {
    char text[64];
    size_t size;
};

struct reader {
    int fd, has_read;
    uint32_t seen;                 /* the next number expected, once it has read */
    struct place position, second; /* offset and cursor, or Last-Modified and Etag */
    struct buffer in;
};

static int port, origin_port, subscribers = 1, core = -1;
static double seconds = 2, warmup = 0.5;
static uint64_t least; /* answers before the window */
static int64_t gap_ns = 50000000;
static const char *path = "/";

static int epoll;
static struct reader *all;
static struct histogram delays;
static uint64_t answers, messages;
static int first_answers;
static int is_counting;

static void ask(struct reader *r) {
    char text[2048];
    int size;
    struct section own = section_of((int)(r - all), "Host: bench\r\nUser-Agent: bench\r\nAccept: */*\r\n");
    if (origin_port)
        size = snprintf(text, sizeof text, "GET %s?%.*s%s%.*s%slive=long-poll&offset=%.*s HTTP/1.1\r\n%.*s\r\n", path,
                        own.query_size, own.query, r->second.size ? "cursor=" : "", (int)r->second.size, r->second.text,
                        r->second.size ? "&" : "", (int)r->position.size, r->position.text, own.size, own.text);
    else if (r->has_read)
        size = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n%.*sIf-Modified-Since: %.*s\r\nIf-None-Match: %.*s\r\n\r\n", path,
                        own.size, own.text, (int)r->position.size, r->position.text, (int)r->second.size, r->second.text);
    else
        size = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n%.*s\r\n", path, own.size, own.text);
    if (size >= (int)sizeof text) die("a header section is too long");
    if (send(r->fd, text, (size_t)size, MSG_NOSIGNAL) != size) die("a request could not be sent: %s", strerror(errno));
}

static void keep(struct place *place, const char *head, size_t size, const char *name) {
    const char *value = field(head, size, name);
    if (value == NULL) die("an answer has no %s", name);
    size_t length = strcspn(value, "\r\n");
    if (length > sizeof place->text) die("%s is too long", name);
    memcpy(place->text, value, length);
    place->size = length;
}

static void take_messages(struct reader *r, const char *at, const char *end) {
    int64_t now = now_ns();
    const char *mark;
    int found = 0;
    while ((mark = memmem(at, (size_t)(end - at), MARK, MARK_BYTES)) != NULL && end - mark >= STAMP_BYTES) {
        uint32_t number = number_of(mark);
        if (r->has_read && number != r->seen) die("a reader got message %u in place of %u", number, r->seen);
        r->has_read = 1;
        r->seen = number + 1;
        at = mark + STAMP_BYTES;
        found++;
        if (is_counting) {
            messages++;
            histogram_add(&delays, now - birth_of(mark));
        }
    }
    if (found == 0) die("a reader was answered without a message");
    answers++;
}

static void take_answer(struct reader *r) {
    if (buffer_receive(&r->in, r->fd, 16384) < 0) die("a reader was sent away");
    const char *head = r->in.data + r->in.start;
    size_t whole = whole_message(head, buffer_size(&r->in), 1);
    if (whole == 0) return;
    if (memcmp(head + 9, "200", 3) != 0) die("a reader was answered %s", on_one_line(head, whole));
    size_t size = (size_t)((const char *)memmem(head, whole, "\r\n\r\n", 4) - head) + 4;
    keep(&r->position, head, size, origin_port ? "stream-next-offset:" : "last-modified:");
    keep(&r->second, head, size, origin_port ? "stream-cursor:" : "etag:");
    if (!r->has_read) first_answers++;
    take_messages(r, head + size, head + whole);
    r->in.start += whole;
    ask(r);
}

static void step(int timeout_ms) {
    static struct epoll_event events[1024];
    int n = epoll_wait(epoll, events, 1024, timeout_ms);
    for (int i = 0; i < n; i++) {
        void *whose = events[i].data.ptr;
        if (!publish_took(whose, events[i].events)) take_answer(whose);
    }
}

static void open_all(void) {
    all = calloc((size_t)subscribers, sizeof *all);
    for (int i = 0; i < subscribers; i++) {
        all[i].position = (struct place){.text = "-1", .size = 2};
        all[i].fd = connect_to(port, 0);
        watch(epoll, EPOLL_CTL_ADD, all[i].fd, EPOLLIN, &all[i]);
        ask(&all[i]);
        /* In batches, so that no listener's queue overflows: a lost SYN costs a second. */
        if ((i + 1) % BATCH == 0)
            for (int64_t began = now_ns(); now_ns() - began < 50000000;) step(5);
    }
    /* Until the server has had nothing to do for a while, which is when all wait. */
    int64_t began = now_ns(), still_since = began, busy = server_ns();
    while (now_ns() - still_since < 250000000) {
        step(20);
        if (server_ns() - busy > STILL_NS || (origin_port && !origin_is_followed())) {
            still_since = now_ns();
            busy = server_ns();
        }
        if (now_ns() - began > PATIENCE_NS) die("the server did not come to rest with %d readers", subscribers);
    }
}

static int read_on(void) {
    struct used before = {0};
    uint32_t chance = 2463534242u;
    int64_t began = now_ns(), next = began;
    uint64_t answers_before = 0;
    /* Counted from when all have been answered once, for which there is time: nchan's have no place before that, and who
     * asks late misses messages. */
    for (;;) {
        int64_t now = now_ns();
        if (!is_counting && now - began > PATIENCE_NS)
            die("only %d of %d readers were answered, %llu times", first_answers, subscribers, (unsigned long long)answers);
        if (!is_counting && first_answers == subscribers && answers >= least && now - began >= (int64_t)(warmup * 1e9)) {
            is_counting = 1;
            next = now;
            answers_before = answers;
            before = used_now(core);
        }
        if (is_counting && now - before.at >= (int64_t)(seconds * 1e9)) break;
        if (now >= next && can_publish()) {
            publish();
            chance ^= chance << 13, chance ^= chance >> 17, chance ^= chance << 5; /* xorshift: the same in every run */
            next = now + (first_answers == subscribers ? gap_ns + (int64_t)(chance % 1024) * gap_ns / 1024 : FIRST_GAP_NS);
        }
        step(1);
    }
    printf("{\"answers\": %llu, \"messages\": %llu, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"upstream_live\": %lu, ",
           (unsigned long long)(answers - answers_before), (unsigned long long)messages,
           (double)histogram_at(&delays, .5) / 1e6, (double)histogram_at(&delays, .99) / 1e6,
           origin_counts.sse + origin_counts.long_poll);
    print_used(before, core);
    printf("}\n");
    return 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"port", 1, 0, 'p'},    {"path", 1, 0, 'q'},    {"subscribers", 1, 0, 'n'}, {"origin", 1, 0, 'o'}, {"post", 1, 0, 't'},
        {"post-path", 1, 0, 'u'}, {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'W'},      {"gap-us", 1, 0, 'g'}, {"pid", 1, 0, 'P'},
        {"core", 1, 0, 'c'},    {"least", 1, 0, 'l'},    {"sections", 1, 0, 'H'}, {"queries", 1, 0, 'Q'}, {0, 0, 0, 0}};
    struct publisher publisher = {.posts = 4, .post_path = "/", .message_bytes = 100};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'q': path = optarg; break;
        case 'n': subscribers = atoi(optarg); break;
        case 'o': origin_port = publisher.origin_port = atoi(optarg); break;
        case 't': publisher.post_port = atoi(optarg); break;
        case 'u': publisher.post_path = optarg; break;
        case 's': seconds = atof(optarg); break;
        case 'W': warmup = atof(optarg); break;
        case 'g': gap_ns = atoll(optarg) * 1000; break;
        case 'P': server_has(atoi(optarg)); break;
        case 'c': core = atoi(optarg); break;
        case 'l': least = (uint64_t)atoll(optarg); break;
        case 'H': sections_load(optarg); break;
        case 'Q': queries_load(optarg); break;
        default: return 2;
        }
    }
    if (!port) die("poll needs --port");
    publisher.path = path;
    allow_many_files();
    epoll = epoll_create1(0);
    publish_start(epoll, &publisher);
    if (origin_port) wait_for_admission(port, path, step);
    open_all();
    return read_on();
}
