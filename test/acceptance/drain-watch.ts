// Records what clients and a load balancer see of a node that is shutting down: when each socket
// closed, and how /readyz responded.

import { setTimeout as pause } from "node:timers/promises";
import type { Broker, ChildBroker } from "../support/broker.ts";
import { openNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";

const TIMEOUT_MS = 120_000;
/** Maximum number of handshakes at the same time. */
const OPENING = 50;

/** How a socket was closed, as its client saw it. */
export interface Closing {
  readonly client: NativeClient;
  readonly code: number;
  readonly atMs: number;
}

/**
 * Opens `count` sockets, each for a different user. Every tenth socket never sends CONNECT. The
 * broker must accept clients without a token.
 */
export async function openCrowd(broker: Broker, count: number): Promise<readonly NativeClient[]> {
  const port = broker.clientPort;
  const crowd: NativeClient[] = [];
  const openOne = async (no: number) => {
    const options = { uid: `user-${no}`, port, timeoutMs: TIMEOUT_MS };
    const client = await openNative(undefined, options);
    if (no % 10 !== 0) await client.connect();
    return client;
  };
  while (crowd.length < count) {
    const batch = Math.min(OPENING, count - crowd.length);
    const first = crowd.length + 1;
    const opened = Array.from({ length: batch }, (_, i) => openOne(first + i));
    crowd.push(...(await Promise.all(opened)));
  }
  return crowd;
}

/** Resolves when all sockets are closed. Returns the closings in order of time. */
export async function watchClosings(crowd: readonly NativeClient[]): Promise<readonly Closing[]> {
  const closings: Closing[] = [];
  const watch = async (client: NativeClient) => {
    const { code } = await client.closed;
    closings.push({ client, code, atMs: performance.now() });
  };
  await Promise.all(crowd.map(watch));
  return closings;
}

/** Returns the largest share of all closings that happened within `windowMs`. */
export function largestShareWithin(closings: readonly Closing[], windowMs: number): number {
  let largest = 0;
  let from = 0;
  closings.forEach(({ atMs }, to) => {
    while ((closings[from]?.atMs ?? atMs) < atMs - windowMs) from += 1;
    largest = Math.max(largest, to - from + 1);
  });
  return largest / closings.length;
}

/** Requests /readyz repeatedly until the API is closed. Returns the responses in order. */
export async function watchReadiness(
  broker: Broker,
): Promise<readonly { readonly status: number; readonly atMs: number }[]> {
  const answers: { status: number; atMs: number }[] = [];
  for (;;) {
    try {
      const { status } = await broker.call("/readyz");
      answers.push({ status, atMs: performance.now() });
    } catch {
      return answers; // the listener is closed
    }
    await pause(10);
  }
}

/** Resolves when the process logs that it is stopping. */
export async function untilStopping(child: ChildBroker): Promise<void> {
  while (!child.output().includes('"msg":"The node is stopping"')) await pause(2);
}
