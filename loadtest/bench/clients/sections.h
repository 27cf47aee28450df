/* The header sections of many clients: a file of them, each with an empty line behind it.  Clients take them in turn.
 * A file of queries gives each client a query of its own, a line each. */
#ifndef SECTIONS_H
#define SECTIONS_H

#include "net.h"

struct section {
    const char *text; /* its lines, each with its line break, without the empty line */
    int size;
    const char *query; /* with its ampersand behind it; empty without a file of queries */
    int query_size;
};

static struct section *sections;
static int section_count;

static inline void sections_load(const char *path) {
    struct buffer all = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) die("cannot read %s: %s", path, strerror(errno));
    size_t got;
    while ((got = fread(buffer_space(&all, 65536), 1, 65536, file)) > 0) all.end += got;
    fclose(file);
    const char *at = all.data, *end = all.data + all.end, *mark;
    while ((mark = memmem(at, (size_t)(end - at), "\r\n\r\n", 4)) != NULL) {
        sections = realloc(sections, (size_t)(section_count + 1) * sizeof *sections);
        sections[section_count++] = (struct section){at, (int)(mark + 2 - at), "", 0};
        at = mark + 4;
    }
    if (section_count == 0) die("%s has no header section", path);
}

/* Gives the sections, which are loaded already, their queries. */
static inline void queries_load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) die("cannot read %s: %s", path, strerror(errno));
    for (int i = 0; i < section_count; i++) {
        char *line = NULL;
        size_t space = 0;
        ssize_t size = getline(&line, &space, file);
        if (size < 2 || line[size - 1] != '\n') die("%s has too few queries", path);
        line[size - 1] = '&';
        sections[i].query = line;
        sections[i].query_size = (int)size;
    }
    fclose(file);
}

/* The section of a client; `same` where no file was loaded. */
static inline struct section section_of(int client, const char *same) {
    return section_count ? sections[client % section_count] : (struct section){same, (int)strlen(same), "", 0};
}

#endif
