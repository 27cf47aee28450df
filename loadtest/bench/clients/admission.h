/* Waits until the server reads from the origin: what of an earlier run it still looks for was refused meanwhile, so that it
 * may take the origin for down and answer for it. */
#ifndef ADMISSION_H
#define ADMISSION_H

#include "link.h"
#include "sections.h"

#define ADMISSION_NS 20000000000
#define ADMISSION_GAP_NS 100000000

/* Asks for `path` until it is answered with 200; `step` waits for so many milliseconds and serves the origin. */
static inline void wait_for_admission(int port, const char *path, void (*step)(int)) {
    char data[8192];
    struct section own = section_of(0, "Host: bench\r\n");
    int size = snprintf(data, sizeof data, "GET %s?%.*soffset=-1 HTTP/1.1\r\n%.*s\r\n", path, own.query_size, own.query,
                        own.size, own.text);
    char request[8192];
    memcpy(request, data, (size_t)size);
    for (int64_t began = now_ns(); now_ns() - began < ADMISSION_NS;) {
        struct link link = link_to(port, 0);
        if (!link_send(link, request, (size_t)size)) die("a request could not be sent");
        ssize_t got;
        while ((got = link_receive(link, data, sizeof data)) < 0 && errno == EAGAIN && now_ns() - began < ADMISSION_NS)
            step(1);
        close(link.fd);
        if (got >= 12 && memcmp(data + 9, "200", 3) == 0) return;
        if (got < 12 || memcmp(data + 9, "503", 3) != 0)
            die("the stream is answered %s", on_one_line(data, got > 0 ? (size_t)got : 0));
        for (int64_t again = now_ns() + ADMISSION_GAP_NS; now_ns() < again;) step(5);
    }
    die("the server does not read from the origin");
}

#endif
