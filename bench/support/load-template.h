// Options of the load client (`name=value`), and templates: frames and requests with placeholders
// for message and connection numbers. Compiled only as part of load.c. Templates are never freed.
#pragma once
#include "load-measure.h"

enum { MAX_SPOTS = 16 };
typedef struct { int at[MAX_SPOTS]; int count; } Spots;
typedef struct { uint8_t *bytes; int length; Spots numbers, indexes; } Template;

static Spots find_spots(const Template *template, const char *mark) {
  Spots spots = {.count = 0};
  int size = (int)strlen(mark);
  for (int i = 0; i + size <= template->length && spots.count < MAX_SPOTS; i++)
    if (memcmp(template->bytes + i, mark, (size_t)size) == 0) spots.at[spots.count++] = i;
  return spots;
}

static Template read_template(const char *path) {
  Template template = {.length = 0};
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail(path);
  template.bytes = malloc(1 << 20);
  template.length = (int)fread(template.bytes, 1, 1 << 20, file);
  fclose(file);
  template.numbers = find_spots(&template, "{kkkkkkkk}");
  template.indexes = find_spots(&template, "{iiii}");
  return template;
}

static void write_digits(uint8_t *to, int count, uint64_t value) {
  for (int i = count - 1; i >= 0; i--, value /= 10) to[i] = (uint8_t)('0' + value % 10);
}

typedef struct { int count; char **arguments; } Options;

static const char *text(const Options *options, const char *name) {
  size_t size = strlen(name);
  for (int i = 1; i < options->count; i++)
    if (strncmp(options->arguments[i], name, size) == 0 && options->arguments[i][size] == '=') return options->arguments[i] + size + 1;
  return NULL;
}

static double number(const Options *options, const char *name) {
  const char *value = text(options, name);
  return value == NULL ? 0 : atof(value);
}

/** Numbers of a comma-separated list, at most `MAX_NUMBERS`. */
enum { MAX_NUMBERS = 16 };
typedef struct { double of[MAX_NUMBERS]; int count; } Numbers;

static Numbers numbers(const Options *options, const char *name) {
  Numbers list = {.count = 0};
  for (const char *at = text(options, name); at != NULL && *at != 0 && list.count < MAX_NUMBERS; at += *at == ',') {
    char *end;
    list.of[list.count++] = strtod(at, &end);
    if (end == at) break;
    at = end;
  }
  return list;
}

/** Returns the number at the index, modulo the length of the list. Returns 0 for an empty list. */
static double nth(const Numbers *list, int index) {
  return list->count == 0 ? 0 : list->of[index % list->count];
}

static int is(const Options *options, const char *name, const char *value) {
  const char *actual = text(options, name);
  return actual != NULL && strcmp(actual, value) == 0;
}

/** Reads the template file of an option. Returns NULL if the option is missing. */
static const Template *template_of(const Options *options, const char *name) {
  const char *path = text(options, name);
  if (path == NULL) return NULL;
  Template *template = malloc(sizeof *template);
  *template = read_template(path);
  return template;
}
