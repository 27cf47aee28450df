/* A connection to the server under test, plain or, in a build WITH_TLS, over TLS: certificates are not checked. */
#ifndef LINK_H
#define LINK_H

#include "net.h"

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

static SSL_CTX *tls; /* NULL: links are plain */

/* From now on links speak TLS 1.3 and, where `protocol` is not NULL, agree on that by ALPN. */
static inline void links_use_tls(const char *protocol) {
    tls = SSL_CTX_new(TLS_client_method());
    if (tls == NULL) die("no TLS");
    SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION);
    SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS);
    if (protocol != NULL) {
        unsigned char wire[32];
        wire[0] = (unsigned char)strlen(protocol);
        memcpy(wire + 1, protocol, wire[0]);
        SSL_CTX_set_alpn_protos(tls, wire, wire[0] + 1u);
    }
}
#else
typedef void SSL;
static inline void links_use_tls(const char *protocol) {
    (void)protocol;
    die("built without TLS");
}
#endif

struct link {
    int fd;
    SSL *ssl;
};

/* Connects; waits for the handshake. */
static inline struct link link_to(int port, int receive_bytes) {
    struct link link = {.fd = connect_to(port, receive_bytes)};
#ifdef WITH_TLS
    if (tls != NULL) {
        int flags = fcntl(link.fd, F_GETFL);
        fcntl(link.fd, F_SETFL, flags & ~O_NONBLOCK);
        link.ssl = SSL_new(tls);
        if (SSL_set_fd(link.ssl, link.fd) != 1 || SSL_connect(link.ssl) != 1) die("the TLS handshake failed");
        fcntl(link.fd, F_SETFL, flags);
    }
#endif
    return link;
}

/* As recv: 0 at the end, -1 with EAGAIN where nothing is there. */
static inline ssize_t link_receive(struct link link, void *to, size_t most) {
#ifdef WITH_TLS
    if (link.ssl != NULL) {
        ERR_clear_error();
        int got = SSL_read(link.ssl, to, (int)most);
        if (got > 0) return got;
        errno = EAGAIN;
        return SSL_get_error(link.ssl, got) == SSL_ERROR_WANT_READ ? -1 : 0;
    }
#endif
    return recv(link.fd, to, most, 0);
}

/* A short message, which the kernel has room for; whether it went. */
static inline int link_send(struct link link, const void *data, size_t size) {
#ifdef WITH_TLS
    if (link.ssl != NULL) return SSL_write(link.ssl, data, (int)size) == (int)size;
#endif
    return send(link.fd, data, size, MSG_NOSIGNAL) == (ssize_t)size;
}

#endif
