// Clock and latency histogram of the load client. Compiled only as part of load.c. Owns the
// histogram. `record` has an effect only while `isMeasuring` is set.
#pragma once
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int isMeasuring;

/** Histogram of nanoseconds, with 64 buckets for each doubling (a resolution of 1.6 %). */
static uint64_t histogram[64 * 64], samples, worst;

static void record(uint64_t ns) {
  if (!isMeasuring) return;
  int index = (int)ns;
  if (ns >= 64) {
    int exponent = 63 - __builtin_clzll(ns);
    index = (exponent - 5) * 64 + (int)((ns >> (exponent - 6)) & 63);
  }
  histogram[index]++;
  samples++;
  if (ns > worst) worst = ns;
}

static double percentile_us(double share) {
  uint64_t target = (uint64_t)((double)samples * share), seen = 0;
  for (int i = 0; i < 64 * 64; i++) {
    seen += histogram[i];
    if (seen > target) return (i < 64 ? i : (double)((uint64_t)(64 + i % 64) << (i / 64 - 1))) / 1e3;
  }
  return (double)worst / 1e3;
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static void fail(const char *what) {
  fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
  exit(2);
}
