/* The header sections of many clients: a file of them, each with an empty line behind it.  Clients take them in turn. */
#ifndef SECTIONS_H
#define SECTIONS_H

#include "net.h"

struct section {
    const char *text; /* its lines, each with its line break, without the empty line */
    int size;
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
        sections[section_count++] = (struct section){at, (int)(mark + 2 - at)};
        at = mark + 4;
    }
    if (section_count == 0) die("%s has no header section", path);
}

/* The section of a client; `same` where no file was loaded. */
static inline struct section section_of(int client, const char *same) {
    return section_count ? sections[client % section_count] : (struct section){same, (int)strlen(same)};
}

#endif
