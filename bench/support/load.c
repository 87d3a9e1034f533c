// The load client of the benches. It is written in C so that it never limits a measurement, and is
// compiled by load.ts. It has one thread and one table of connections. It does not implement the
// broker's protocols: files contain complete frames and HTTP requests, into which it only writes
// the digits of message and connection numbers.
//
// Modes (the result is one line of JSON on stdout):
//
//   load mode=request kind=ws|http port=P connections=N depth=D upgrade=F [open=F replies=R]
//        message=F reply=HEX warmup=S seconds=S [rate=R] [process=PID]
//     Closed loop: keeps D unanswered messages on each connection. With `rate`, an open loop: R
//     messages per second on all connections together, at most D of them unanswered on each.
//
//   load mode=fanout port=P connections=N depth=D upgrade=F [open=F replies=R] reply=HEX
//        publish=ws|http publishPort=P [publishUpgrade=F publishOpen=F] message=F
//        warmup=S seconds=S [rate=R] [process=PID]
//     Closed loop: keeps D messages in flight. A message is in flight until all N connections have
//     received it. With `rate`, an open loop: R messages per second, over HTTP on D connections.
//
//   load mode=stream port=P connections=N upgrade=F [open=F replies=R] reply=HEX publishPort=P
//        message=F rate=R warmup=S seconds=S [process=PID]
//     Open loop: publishes R messages per second in each of N streams. Each stream has its own HTTP
//     connection for publishing and one viewer. `{iiii}` is the same number for both connections.
//
//   load mode=hold port=P connections=N [first=I] upgrade=F [open=F replies=R] [reply=HEX]
//     Prints the result when all connections are open, and keeps them open until stdin ends. For
//     each line on stdin it prints one line of JSON: the number of open connections, the number of
//     frames they received that begin with `reply`, and its minimum and maximum per connection.
//
// In an open loop, latency is measured from the time at which a message was due. The latency
// therefore includes the delay of a server that cannot keep up.
//
// Options:
//
//   host               IPv4 address of the server, 127.0.0.1 by default
//   port, publishPort  comma-separated ports, which the connections use in turn
//   process            comma-separated process ids. The CPU time of the processes is printed in
//                      total and for each process
//   first              connection number of the first connection, 0 by default
//   upgrade, open      files with the WebSocket upgrade and the first frame of a connection
//   replies            number of frames to wait for after `open`
//   framing            `varint`: there is no upgrade. A frame consists of one byte, the length of
//                      the body (7 bits in each byte, lowest bits first), and the body. The
//                      publisher uses HTTP
//   opened, publishOpened   bytes, in hexadecimal, that a frame must contain to count as a reply to
//                      `open`; by default every frame counts
//   message            file with the frame or request of one message
//   reply              first bytes of a correct reply, in hexadecimal
//   packed             1: a frame contains any number of replies, each of which begins with the
//                      bytes of `reply`; frames without these bytes are ignored
//
// Files may contain the placeholders `{kkkkkkkk}`, for a 10-digit message number, and `{iiii}`, for
// a 6-digit connection number. A reply counts as `bad` if it does not begin with the bytes of
// `reply`, or over HTTP if its status is not 2xx.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "load-measure.h"
#include "load-processes.h"
#include "load-template.h"

enum { MAX_DEPTH = 4096, MAX_CONNECTING = 256, CONNECT_DEADLINE_S = 60, MAX_EXTRA_S = 20, READ_BYTES = 256 * 1024 };
typedef enum { CONNECTING, UPGRADING, OPENING, READY, DEAD } State;
typedef enum { RECEIVER, REQUESTER, PUBLISHER } Role;

typedef struct { uint8_t *bytes; size_t start, end, capacity; } Buffer;
typedef struct { uint8_t bytes[32]; int length; } Mark; // bytes by which a frame is recognised

typedef struct {
  int fd, id, port, isHttp, watchesWrites;
  Role role;
  State state;
  int pendingReplies;
  Buffer in, out;
  uint64_t received;            // receiver: deliveries; mode hold: frames that begin with `reply`
  uint64_t *sentAt;             // requester: ring of `depth` send times (open loop: due times)
  uint64_t sent, answered;
  uint64_t overdue;             // open loop: due messages that wait for the next replies
  const Template *upgrade, *open;
  const Mark *opened;
} Connection;

static in_addr_t host;
static int epoll_fd, depth = 1, connectionCount, receiverCount;
static Connection *connections;
static Template message;
static Mark expected, opened, publishOpened;
static int isPacked;
static int isVarint;
static int readyCount, closedCount, isRunning, isHold, isStdinOpen = 1;
static uint64_t messageNumber, operations, bad, bytesIn;
// Fan-out: for each message its send time and the number of receivers that have it, in rings.
// `fanoutCompleted` is the number of messages that all receivers have.
static uint64_t fanoutSentAt[MAX_DEPTH * 2], fanoutCompleted, fanoutSent;
static uint32_t fanoutCount[MAX_DEPTH * 2];

// --- Buffers and sockets ---

static void reserve(Buffer *buffer, size_t bytes) {
  if (buffer->start == buffer->end) buffer->start = buffer->end = 0;
  if (buffer->capacity - buffer->end >= bytes) return;
  memmove(buffer->bytes, buffer->bytes + buffer->start, buffer->end - buffer->start);
  buffer->end -= buffer->start;
  buffer->start = 0;
  if (buffer->capacity - buffer->end >= bytes) return;
  buffer->capacity = (buffer->end + bytes) * 2;
  buffer->bytes = realloc(buffer->bytes, buffer->capacity);
}

static void watch(Connection *connection, int writes) {
  if (connection->watchesWrites == writes) return;
  struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = connection};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
  connection->watchesWrites = writes;
}

static void close_connection(Connection *connection) {
  if (connection->state == DEAD) return;
  connection->state = DEAD;
  closedCount++;
  close(connection->fd);
}

static void flush(Connection *connection) {
  Buffer *out = &connection->out;
  while (out->start < out->end) {
    ssize_t written = write(connection->fd, out->bytes + out->start, out->end - out->start);
    if (written < 0 && errno == EAGAIN) return watch(connection, 1);
    if (written <= 0) return close_connection(connection);
    out->start += (size_t)written;
  }
  watch(connection, 0);
}

static void queue(Connection *connection, const Template *template, uint64_t number) {
  Buffer *out = &connection->out;
  reserve(out, (size_t)template->length);
  uint8_t *to = out->bytes + out->end;
  memcpy(to, template->bytes, (size_t)template->length);
  for (int i = 0; i < template->numbers.count; i++) write_digits(to + template->numbers.at[i], 10, number);
  for (int i = 0; i < template->indexes.count; i++) write_digits(to + template->indexes.at[i], 6, (uint64_t)connection->id);
  out->end += (size_t)template->length;
}

/** Prints why a connection failed or a reply is unexpected. Only the first call prints anything. */
static void report_once(const char *what, const uint8_t *bytes, size_t length) {
  static int isReported;
  if (!isReported) fprintf(stderr, "load: %s: %.*s\n", what, (int)length, (const char *)bytes);
  isReported = 1;
}

/** Answers a ping with an empty pong. The measured servers do not check the payload. */
static void queue_pong(Connection *connection) {
  static uint8_t pong[] = {0x8a, 0x80, 0, 0, 0, 0};
  Template template = {.bytes = pong, .length = sizeof pong};
  queue(connection, &template, 0);
  flush(connection);
}

static void start_connecting(Connection *connection) {
  connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (connection->fd < 0) fail("socket");
  int on = 1;
  struct linger reset = {.l_onoff = 1, .l_linger = 0}; // avoids TIME_WAIT: the next round needs the ports
  setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)connection->port), .sin_addr.s_addr = host};
  if (connect(connection->fd, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS) fail("connect");
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = connection};
  connection->watchesWrites = 1;
  connection->state = CONNECTING;
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event);
}

#include "load-schedule.h"

// --- Messages and replies ---

static void send_request(Connection *connection, uint64_t at) {
  connection->sentAt[connection->sent++ % (uint64_t)depth] = at;
  queue(connection, &message, messageNumber++);
}

/** Sends the next message of a connection in an open loop. Message m is due on connection m % N. */
static void send_scheduled(Connection *connection) {
  uint64_t number = connection->sent * (uint64_t)connectionCount + (uint64_t)(connection - connections);
  send_request(connection, due_at(number));
}

/**
 * Sends the messages that are due in an open loop of requests. If a connection already has `depth`
 * unanswered messages, its message is sent after the next reply.
 */
static void request_due(uint64_t at) {
  for (; due_at(dueCount) <= at; dueCount++) {
    Connection *connection = &connections[dueCount % (uint64_t)connectionCount];
    if (connection->sent - connection->answered >= (uint64_t)depth) { connection->overdue++; continue; }
    send_scheduled(connection);
    flush(connection);
  }
}

static void answered(Connection *connection, int isGood, uint64_t at) {
  if (connection->state == OPENING) {
    if (--connection->pendingReplies > 0) return;
    connection->state = READY;
    readyCount++;
    return;
  }
  if (isHold) connection->received += (uint64_t)isGood;
  if (!isRunning) return;
  if (connection->role != RECEIVER) connection->answered++;
  if (!isGood && connection->role != PUBLISHER) { bad++; return; }
  if (connection->role == REQUESTER) {
    record(at - connection->sentAt[(connection->answered - 1) % (uint64_t)depth]);
    operations += (uint64_t)isMeasuring;
    if (!isOpenLoop) send_request(connection, at);
    else if (connection->overdue > 0) { connection->overdue--; send_scheduled(connection); }
  } else if (isStream && connection->role == RECEIVER) {
    record(at - due_at(connection->received++ * (uint64_t)receiverCount + (uint64_t)connection->id));
    operations += (uint64_t)isMeasuring;
  } else if (connection->role == RECEIVER) {
    uint64_t slot = connection->received++ % (MAX_DEPTH * 2);
    record(at - fanoutSentAt[slot]);
    operations += (uint64_t)isMeasuring;
    if (++fanoutCount[slot] == (uint32_t)receiverCount) { fanoutCount[slot] = 0; fanoutCompleted++; }
  } else if (connection->isHttp && !isGood) bad++;
  else if (connection->overdue > 0) { connection->overdue--; send_chunk(connection); }
}

/** Returns whether a fan-out may send its next message at this time. */
static int may_publish(uint64_t at) {
  uint64_t inFlight = fanoutSent - fanoutCompleted;
  return isOpenLoop ? due_at(fanoutSent) <= at && inFlight < MAX_DEPTH * 2 : inFlight < (uint64_t)depth;
}

/**
 * Sends until `depth` messages are in flight, or in an open loop the messages that are due. Over
 * HTTP each connection has one call at a time.
 */
static void publish(uint64_t at) {
  for (int i = receiverCount; i < connectionCount; i++) {
    Connection *connection = &connections[i];
    if (connection->state != READY) continue;
    int before = (int)(connection->out.end - connection->out.start);
    while (may_publish(at)) {
      if (connection->isHttp && connection->sent > connection->answered) break;
      fanoutSentAt[fanoutSent % (MAX_DEPTH * 2)] = isOpenLoop ? due_at(fanoutSent) : at;
      fanoutSent++;
      connection->sent++;
      queue(connection, &message, messageNumber++);
    }
    if ((int)(connection->out.end - connection->out.start) != before) flush(connection);
  }
}

// --- Reading ---

/** Handles one HTTP response from the buffer. Returns false if it is incomplete or refuses the upgrade. */
static int parse_http(Connection *connection, uint64_t at) {
  Buffer *in = &connection->in;
  char *head = (char *)in->bytes + in->start;
  size_t available = in->end - in->start;
  char *end = available ? memmem(head, available, "\r\n\r\n", 4) : NULL;
  if (end == NULL) return 0;
  size_t total = (size_t)(end - head) + 4;
  int isGood = head[9] == '2';
  if (connection->state == UPGRADING) {
    if (memcmp(head + 9, "101", 3) != 0) { report_once("the server refused the upgrade", (uint8_t *)head, total); close_connection(connection); return 0; }
    connection->state = OPENING;
    if (connection->open != NULL) queue(connection, connection->open, messageNumber++);
    if (connection->pendingReplies == 0) { connection->state = READY; readyCount++; }
  } else {
    *end = 0;
    char *field = strcasestr(head, "content-length:");
    *end = '\r';
    if (field != NULL) total += (size_t)atol(field + 15);
    if (total > available) return 0;
    if (!isGood) report_once("the status of a response is not 2xx", (uint8_t *)head, total);
    answered(connection, isGood, at);
  }
  in->start += total;
  return 1;
}

/** Counts the replies that a server has packed into one frame. */
static void count_packed(Connection *connection, const uint8_t *content, size_t length, uint64_t at) {
  const uint8_t *end = content + length;
  for (;;) {
    content = memmem(content, (size_t)(end - content), expected.bytes, (size_t)expected.length);
    if (content == NULL) return;
    content += expected.length;
    answered(connection, 1, at);
  }
}

/** Handles one WebSocket frame from the buffer. Returns false if it is incomplete or a close. */
static int parse_frame(Connection *connection, uint64_t at) {
  Buffer *in = &connection->in;
  uint8_t *frame = in->bytes + in->start;
  size_t available = in->end - in->start, head = 2;
  if (available < 2) return 0;
  uint64_t length = frame[1] & 127;
  int extra = length == 126 ? 2 : length == 127 ? 8 : 0;
  head += (size_t)extra;
  if (available < head) return 0;
  if (extra > 0) for (length = 0; extra > 0; extra--) length = length << 8 | frame[head - (size_t)extra];
  if (available < head + length) return 0;
  in->start += head + length;
  int opcode = frame[0] & 15;
  if (opcode == 8) {
    fprintf(stderr, "load: the server closed a connection with code %d\n", length < 2 ? 1005 : frame[head] << 8 | frame[head + 1]);
    report_once("reason of the close", frame + head + 2, length < 2 ? 0 : length - 2);
    close_connection(connection);
    return 0;
  }
  if (opcode == 9) queue_pong(connection);
  if (opcode > 2) return 1;
  if (connection->state == OPENING && memmem(frame + head, length, connection->opened->bytes, (size_t)connection->opened->length) == NULL) return 1;
  if (isPacked && connection->state == READY) { count_packed(connection, frame + head, length, at); return 1; }
  int isGood = length >= (uint64_t)expected.length && memcmp(frame + head, expected.bytes, (size_t)expected.length) == 0;
  if (!isGood && connection->state == READY && connection->role != PUBLISHER && !isHold) report_once("a frame does not begin with the expected bytes", frame + head, length);
  answered(connection, isGood, at);
  return 1;
}

/** Handles one frame of `framing=varint` from the buffer. Returns false if it is incomplete. */
static int parse_varint_frame(Connection *connection, uint64_t at) {
  Buffer *in = &connection->in;
  uint8_t *frame = in->bytes + in->start;
  size_t available = in->end - in->start, head = 1;
  uint64_t length = 0;
  do {
    if (head >= available) return 0;
    length |= (uint64_t)(frame[head] & 127) << (7 * (head - 1));
  } while (frame[head++] > 127);
  if (available < head + length) return 0;
  in->start += head + length;
  int isGood = head + length >= (uint64_t)expected.length && memcmp(frame, expected.bytes, (size_t)expected.length) == 0;
  if (!isGood && connection->state == READY && !isHold) report_once("a frame does not begin with the expected bytes", frame, head + length);
  answered(connection, isGood, at);
  return 1;
}

static void parse_all(Connection *connection) {
  uint64_t at = now_ns();
  int more = 1;
  while (more && connection->state != DEAD)
    more = connection->isHttp || connection->state == UPGRADING ? parse_http(connection, at)
         : isVarint ? parse_varint_frame(connection, at) : parse_frame(connection, at);
}

static void read_some(Connection *connection) {
  static uint8_t shared[READ_BYTES];
  Buffer *in = &connection->in;
  ssize_t byteCount = read(connection->fd, shared, sizeof shared);
  if (byteCount == 0 || (byteCount < 0 && errno != EAGAIN)) {
    report_once("the server closed a connection", (const uint8_t *)"", 0);
    return close_connection(connection);
  }
  if (byteCount < 0) return;
  bytesIn += (uint64_t)byteCount;
  Buffer idleBuffer = *in;
  int isUnbuffered = in->start == in->end; // usually true, so idle connections need no buffer
  if (isUnbuffered) *in = (Buffer){.bytes = shared, .end = (size_t)byteCount, .capacity = sizeof shared};
  else { reserve(in, (size_t)byteCount); memcpy(in->bytes + in->end, shared, (size_t)byteCount); in->end += (size_t)byteCount; }
  parse_all(connection);
  if (!isUnbuffered) return;
  size_t remaining = in->end - in->start, from = in->start;
  *in = (Buffer){.bytes = idleBuffer.bytes, .capacity = idleBuffer.capacity};
  if (remaining == 0) return;
  reserve(in, remaining);
  memcpy(in->bytes, shared + from, remaining);
  in->end = remaining;
}

static void print_status(void) {
  static int queryNumber;
  uint64_t least = UINT64_MAX, most = 0, all = 0;
  for (int i = 0; i < connectionCount; i++) {
    if (connections[i].state != READY) continue;
    uint64_t received = connections[i].received;
    all += received;
    if (received < least) least = received;
    if (received > most) most = received;
  }
  if (all == 0) least = 0;
  printf("{\"query\":%d,\"open\":%d,\"received\":%lu,\"least\":%lu,\"most\":%lu}\n", ++queryNumber, connectionCount - closedCount, all, least, most);
  fflush(stdout);
}

static void on_stdin(void) {
  char bytes[64];
  ssize_t byteCount = read(0, bytes, sizeof bytes);
  if (byteCount <= 0) isStdinOpen = 0;
  for (ssize_t i = 0; i < byteCount; i++) if (bytes[i] == '\n') print_status();
}

static void on_event(struct epoll_event *event) {
  Connection *connection = event->data.ptr;
  if (connection == NULL) return on_stdin();
  if (connection->state == DEAD) return;
  if (connection->state == CONNECTING) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) { report_once("could not connect", (uint8_t *)strerror(error), strlen(strerror(error))); return close_connection(connection); }
    if (connection->upgrade != NULL) { connection->state = UPGRADING; queue(connection, connection->upgrade, 0); }
    else if (connection->open != NULL) { connection->state = OPENING; queue(connection, connection->open, messageNumber++); }
    else { connection->state = READY; readyCount++; }
  }
  if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP)) read_some(connection);
  if (connection->state != DEAD) flush(connection);
}

static void poll_events(int timeout_ms) {
  struct epoll_event events[512];
  int count = epoll_wait(epoll_fd, events, 512, timeout_ms);
  for (int i = 0; i < count; i++) on_event(&events[i]);
}

// --- Modes ---

static void connect_all(void) {
  uint64_t deadline = now_ns() + CONNECT_DEADLINE_S * 1000000000ull;
  int started = 0;
  while (readyCount + closedCount < connectionCount && now_ns() < deadline) {
    for (; started < connectionCount && started - readyCount - closedCount < MAX_CONNECTING; started++)
      start_connecting(&connections[started]);
    poll_events(50);
  }
  if (readyCount < connectionCount) { fprintf(stderr, "load: only %d of %d connections were opened\n", readyCount, connectionCount); exit(1); }
}

/**
 * Runs the load for the given time. If nothing was measured by then, which can happen in a quick
 * run on a busy machine, continues for at most `MAX_EXTRA_S` seconds.
 */
static void run_load(double warmup, double seconds, const Numbers *processes) {
  uint64_t start = now_ns(), from = start + (uint64_t)(warmup * 1e9), until = 0, at = start;
  isRunning = 1;
  openLoopStart = start;
  for (int i = 0; i < connectionCount && !isOpenLoop; i++) {
    if (connections[i].role != REQUESTER) continue;
    for (int k = 0; k < depth; k++) send_request(&connections[i], start);
    flush(&connections[i]);
  }
  while (until == 0 || at < until || (operations == 0 && at < until + MAX_EXTRA_S * 1000000000ull)) {
    if (isStream) publish_due(at);
    else if (receiverCount > 0) publish(at);
    else if (isOpenLoop) request_due(at);
    if (isOpenLoop) { sleep_until_due(now_ns()); poll_events(0); }
    else poll_events(5);
    at = now_ns();
    if (!isMeasuring && at >= from) { isMeasuring = 1; from = at; until = at + (uint64_t)(seconds * 1e9); count_cpu(processes, -1); bytesIn = 0; }
    if (closedCount > 0 || bad > 0) { fprintf(stderr, "load: %d connections were closed, %lu replies were bad\n", closedCount, bad); exit(1); }
  }
  double elapsed = (double)(at - from) / 1e9;
  count_cpu(processes, 1);
  printf("\"operations\":%lu,\"seconds\":%.4f,\"bytesIn\":%lu,", operations, elapsed, bytesIn);
  print_cpu(processes);
  printf("\"latencyUs\":{\"p50\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f},", percentile_us(.5), percentile_us(.99), percentile_us(.999), (double)worst / 1e3);
}

static void hold(void) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, 0, &event);
  while (isStdinOpen) poll_events(1000);
}

static void make_connections(const Options *options) {
  isStream = is(options, "mode", "stream");
  int isFanout = isStream || is(options, "mode", "fanout"), isHttp = is(options, "kind", "http");
  int isHttpPublish = isStream || (isFanout && is(options, "publish", "http"));
  const Template *upgrade = template_of(options, "upgrade"), *open = template_of(options, "open");
  const Template *publishUpgrade = template_of(options, "publishUpgrade"), *publishOpen = template_of(options, "publishOpen");
  Numbers ports = numbers(options, "port"), publishPorts = numbers(options, "publishPort");
  connectionCount = (int)number(options, "connections");
  int first = (int)number(options, "first");
  receiverCount = isFanout ? connectionCount : 0;
  double rate = number(options, "rate") * (isStream ? connectionCount : 1);
  isOpenLoop = rate > 0;
  if (isOpenLoop) dueGapNs = (uint64_t)(1e9 / rate);
  connectionCount += isStream ? receiverCount : isHttpPublish ? depth : isFanout ? 1 : 0;
  connections = calloc((size_t)connectionCount, sizeof *connections);
  for (int i = 0; i < connectionCount; i++) {
    int isPublisher = isFanout && i >= receiverCount;
    Connection *connection = &connections[i];
    connection->id = first + (isStream ? i % receiverCount : i);
    connection->port = (int)nth(isPublisher ? &publishPorts : &ports, i);
    connection->isHttp = isPublisher ? isHttpPublish : isHttp;
    connection->role = isPublisher ? PUBLISHER : isFanout ? RECEIVER : REQUESTER;
    connection->upgrade = isPublisher ? publishUpgrade : upgrade;
    connection->open = isPublisher ? publishOpen : open;
    connection->opened = isPublisher ? &publishOpened : &opened;
    connection->pendingReplies = connection->open == NULL ? 0 : (int)number(options, "replies");
    if (connection->role == REQUESTER) connection->sentAt = calloc((size_t)depth, sizeof(uint64_t));
  }
}

static void read_mark(const Options *options, const char *name, Mark *mark) {
  const char *hex = text(options, name) == NULL ? "" : text(options, name);
  for (; mark->length < 32 && sscanf(hex, "%2hhx", &mark->bytes[mark->length]) == 1; hex += 2) mark->length++;
}

static void raise_file_limit(void) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

int main(int count, char **arguments) {
  Options options = {count, arguments};
  raise_file_limit();
  prctl(PR_SET_TIMERSLACK, 1); // nanosleep must not sleep longer than requested
  epoll_fd = epoll_create1(0);
  host = text(&options, "host") == NULL ? htonl(INADDR_LOOPBACK) : inet_addr(text(&options, "host"));
  depth = number(&options, "depth") < 1 ? 1 : (int)number(&options, "depth");
  if (depth > MAX_DEPTH) { fprintf(stderr, "load: depth can be at most %d\n", MAX_DEPTH); return 2; }
  if (text(&options, "message") != NULL) message = *template_of(&options, "message");
  read_mark(&options, "reply", &expected);
  read_mark(&options, "opened", &opened);
  read_mark(&options, "publishOpened", &publishOpened);
  isHold = is(&options, "mode", "hold");
  isPacked = is(&options, "packed", "1");
  isVarint = is(&options, "framing", "varint");
  make_connections(&options);
  uint64_t start = now_ns();
  connect_all();
  printf("{\"connections\":%d,\"connectSeconds\":%.4f,", readyCount, (double)(now_ns() - start) / 1e9);
  Numbers processes = numbers(&options, "process");
  if (!isHold) run_load(number(&options, "warmup"), number(&options, "seconds"), &processes);
  printf("\"closed\":%d}\n", closedCount);
  fflush(stdout);
  if (isHold) hold();
  return 0;
}
