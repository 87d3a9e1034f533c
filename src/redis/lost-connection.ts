// Tracks the connection to one server, for calls that fail when this connection is lost. Such a
// call may still be in a network buffer, and the server would run it on arrival. The failure is
// therefore reported only after the server has closed the lost connection, or when the server would
// reject the call as too late. State: the current connection.

import type { Redis } from "ioredis";
import { type Deferred, deferred } from "../lib/deferred.ts";
import { waitAtMost } from "../lib/wait-at-most.ts";
import { send } from "./client.ts";

interface Connection {
  /** CLIENT KILL filters that select only this connection, or `undefined` if they are unknown. */
  filters: readonly string[] | undefined;
  /** Resolves when the server has closed the connection. Never rejects. */
  readonly closed: Deferred;
}

export class Connections {
  #present: Connection | undefined;

  /**
   * Watches a client that reconnects automatically. After each reconnect, makes the server close
   * the lost connection. Must be called before the client connects.
   */
  watch(client: Redis): void {
    client.on("ready", () => {
      const lost = this.#present;
      const present: Connection = { filters: undefined, closed: deferred() };
      this.#present = present;
      if (lost !== undefined) void close(client, lost);
      void identify(client, present);
    });
  }

  get present(): Connection | undefined {
    return this.#present;
  }
}

/**
 * Resolves when a call that was sent on the connection can no longer run: after `untilMs`
 * (`performance.now()`), or earlier if the server has closed the connection.
 */
export async function cannotRun(
  connection: Connection | undefined,
  untilMs: number,
): Promise<void> {
  let isClosed = false;
  const closed = (connection?.closed.promise ?? new Promise(() => {})).then(() => {
    isClosed = true;
  });
  // A timer of Node.js may fire up to a millisecond early.
  while (!isClosed && performance.now() <= untilMs)
    await waitAtMost(closed, Math.ceil(untilMs - performance.now()));
}

/** Reads the connection's filters. Without them, `cannotRun` resolves after `untilMs`. */
async function identify(client: Redis, connection: Connection): Promise<void> {
  try {
    const info = String(await send(client, "client", ["info"], {}));
    const [, id] = /\bid=(\d+)/.exec(info) ?? [];
    const [, address] = /\baddr=(\S+)/.exec(info) ?? [];
    if (id === undefined || address === undefined) return;
    connection.filters = ["id", id, "addr", address]; // a restarted server reuses ids
  } catch {} // the connection was lost, or the user has no right to run the command
}

async function close(client: Redis, { filters, closed }: Connection): Promise<void> {
  if (filters === undefined) return;
  try {
    await send(client, "client", ["kill", ...filters], {});
    closed.resolve();
  } catch {} // the new connection was lost too, or the user has no right to run the command
}
