// What clients and a load balancer see of a node that is told to go. State: when which socket
// closed, what /readyz answered.

import { setTimeout as pause } from "node:timers/promises";
import type { Broker, ChildBroker } from "../support/broker.ts";
import { openNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";

const TIMEOUT_MS = 120_000;
/** Handshakes under way at once. */
const OPENING = 50;

/** A socket's end as its client saw it. */
export interface Closing {
  readonly client: NativeClient;
  readonly code: number;
  readonly atMs: number;
}

/**
 * Opens so many sockets of as many users; every tenth never says CONNECT. The broker asks no client
 * for a token.
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

/** Resolves with all closings, in the order they came. */
export async function watchClosings(crowd: readonly NativeClient[]): Promise<readonly Closing[]> {
  const closings: Closing[] = [];
  const watch = async (client: NativeClient) => {
    const { code } = await client.closed;
    closings.push({ client, code, atMs: performance.now() });
  };
  await Promise.all(crowd.map(watch));
  return closings;
}

/** The greatest share of all closings that fell into one window of `windowMs`. */
export function densest(closings: readonly Closing[], windowMs: number): number {
  let most = 0;
  let from = 0;
  closings.forEach(({ atMs }, to) => {
    while ((closings[from]?.atMs ?? atMs) < atMs - windowMs) from += 1;
    most = Math.max(most, to - from + 1);
  });
  return most / closings.length;
}

/** Asks /readyz again and again until the API is gone; resolves with the answers in order. */
export async function watchReadiness(
  broker: Broker,
): Promise<readonly { readonly status: number; readonly atMs: number }[]> {
  const answers: { status: number; atMs: number }[] = [];
  for (;;) {
    try {
      const { status } = await broker.call("/readyz");
      answers.push({ status, atMs: performance.now() });
    } catch {
      return answers; // nobody listens any more
    }
    await pause(10);
  }
}

/** Resolves when the process says that it is stopping. */
export async function stopping(child: ChildBroker): Promise<void> {
  while (!child.output().includes('"msg":"The node is stopping"')) await pause(2);
}
