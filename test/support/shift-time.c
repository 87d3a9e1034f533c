// Library for LD_PRELOAD. Shifts the wall clock of a process by the number of seconds in the file
// that CLOCK_FILE names. The monotonic clock is not shifted.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift_s(void) {
  const char *path = getenv("CLOCK_FILE");
  char text[32] = {0};
  int file = path == NULL ? -1 : open(path, O_RDONLY);
  if (file < 0) return 0;
  if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
  close(file);
  return atol(text);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  static int (*original)(struct timeval *, void *);
  if (original == NULL) *(void **)&original = dlsym(RTLD_NEXT, "gettimeofday");
  int result = original(now, zone);
  now->tv_sec += shift_s();
  return result;
}

time_t time(time_t *now) {
  struct timeval whole;
  gettimeofday(&whole, NULL);
  if (now != NULL) *now = whole.tv_sec;
  return whole.tv_sec;
}
