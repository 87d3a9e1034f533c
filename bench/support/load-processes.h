// CPU time of the measured processes. Included only by load.c. Owns the CPU seconds that each
// process used between the two calls to `count_cpu`.
#pragma once
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "load-template.h"

static double cpuSeconds[MAX_NUMBERS];

/** Returns the CPU time (user and system) of a process in seconds, or 0 if it cannot be read. */
static double cpu_seconds(int pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = pid > 0 ? fopen(path, "r") : NULL;
  if (file == NULL) return 0;
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  unsigned long user = 0, kernel = 0;
  char *fields = strrchr(text, ')');
  if (fields != NULL) sscanf(fields + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel);
  return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/**
 * Adds the CPU time of each process, multiplied by `sign`, to `cpuSeconds`. Called with -1 at the
 * start and 1 at the end, so that the difference remains.
 */
static void count_cpu(const Numbers *processes, int sign) {
  for (int i = 0; i < processes->count; i++) cpuSeconds[i] += sign * cpu_seconds((int)processes->of[i]);
}

static void print_cpu(const Numbers *processes) {
  double all = 0;
  printf("\"cpus\":[");
  for (int i = 0; i < processes->count; all += cpuSeconds[i++]) printf("%s%.2f", i > 0 ? "," : "", cpuSeconds[i]);
  printf("],\"cpuSeconds\":%.2f,", all);
}
