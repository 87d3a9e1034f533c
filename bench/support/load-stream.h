// The load client's open loop: streams that are published at a fixed rate whatever the server does. Included by load.c only, behind what it
// knows of connections. State: when it started, how much was due so far.
#pragma once

// Streams: message m of all is due `m * dueGapNs` after the start, to stream m % receiverCount.
static int isStream;
static uint64_t streamStart, dueGapNs, dueCount;

static void send_chunk(Connection *connection) {
  connection->sent++;
  queue(connection, &message, messageNumber++);
}

static uint64_t due_at(uint64_t number) {
  return streamStart + number * dueGapNs;
}

/** Sends what is due, one call at a time on each connection. */
static void publish_due(uint64_t at) {
  for (; due_at(dueCount) <= at; dueCount++) {
    Connection *connection = &connections[receiverCount + (int)(dueCount % (uint64_t)receiverCount)];
    if (connection->sent > connection->answered) { connection->owed++; continue; }
    send_chunk(connection);
    flush(connection);
  }
}

/** Rests until something is due, which is sooner than epoll can wait. */
static void rest_until_due(uint64_t at) {
  uint64_t due = due_at(dueCount);
  struct timespec rest = {.tv_nsec = due > at + 100000 ? 100000 : due > at ? (long)(due - at) : 0};
  if (rest.tv_nsec > 0) nanosleep(&rest, NULL);
}
