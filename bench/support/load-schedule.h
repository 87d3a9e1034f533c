// The schedule of the load client's open loops, which send messages at a fixed rate regardless of
// the server's replies, and of the streams whose chunks the load client publishes. Included only by
// load.c, after the declaration of the connections. Owns the start time and the number of messages
// that have become due so far.
#pragma once

// Message m is due `m * dueGapNs` after the start. In mode `stream`, the message belongs to stream
// `m % receiverCount`.
static int isStream, isOpenLoop;
static uint64_t openLoopStart, dueGapNs, dueCount;

static void send_chunk(Connection *connection) {
  connection->sent++;
  queue(connection, &message, messageNumber++);
}

static uint64_t due_at(uint64_t number) {
  return openLoopStart + number * dueGapNs;
}

/**
 * Sends the chunks that are due. Each connection has one call at a time, so a chunk that is due
 * before the reply to the last call is sent after that reply.
 */
static void publish_due(uint64_t at) {
  for (; due_at(dueCount) <= at; dueCount++) {
    Connection *connection = &connections[receiverCount + (int)(dueCount % (uint64_t)receiverCount)];
    if (connection->sent > connection->answered) { connection->overdue++; continue; }
    send_chunk(connection);
    flush(connection);
  }
}

/**
 * Sleeps until the next message is due, for at most 0.1 ms. epoll cannot wait for so short a time.
 */
static void sleep_until_due(uint64_t at) {
  uint64_t due = due_at(dueCount > fanoutSent ? dueCount : fanoutSent);
  struct timespec pause = {.tv_nsec = due > at + 100000 ? 100000 : due > at ? (long)(due - at) : 0};
  if (pause.tv_nsec > 0) nanosleep(&pause, NULL);
}
