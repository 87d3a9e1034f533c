// Measures the processor times of the node and of Redis.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "./clusters.ts";
import { threadSeconds } from "./proc.ts";
import type { Server } from "./servers.ts";

/** Processor times in milliseconds. */
export interface Cost {
  readonly node: number;
  readonly redis: number;
}

interface Processes {
  readonly server: Server;
  readonly redis: Redis | undefined;
}

/** Runs `run`, which makes `calls` calls. Returns the average processor time per call, in ms. */
export async function costOf(
  { server, redis }: Processes,
  calls: number,
  run: () => Promise<void>,
): Promise<Cost> {
  const redisPid = redis?.processes[0]?.pid;
  const times = () => [processorMs(server.pid), processorMs(redisPid)] as const;
  const [node, redisMs] = times();
  await run();
  const [nodeEnd, redisEnd] = times();
  return { node: (nodeEnd - node) / calls, redis: (redisEnd - redisMs) / calls };
}

/**
 * Returns the processor time of the process so far in milliseconds, or 0 if `pid` is `undefined`.
 */
export function processorMs(pid: number | undefined): number {
  return pid === undefined ? 0 : threadSeconds(pid) * 1000;
}

/** Processor time between two checks below which a server counts as idle. */
const IDLE_SECONDS = 0.02;
const IDLE_CHECK_MS = 200;
const MAX_IDLE_CHECKS = 50;

/**
 * Waits until the server has finished the work that the last clients caused, for at most ten
 * seconds.
 */
export async function waitUntilIdle({ pid }: Pick<Server, "pid">): Promise<void> {
  let before = Number.NEGATIVE_INFINITY;
  for (let check = 0; check < MAX_IDLE_CHECKS; check++) {
    const now = threadSeconds(pid);
    if (now - before < IDLE_SECONDS) return;
    before = now;
    await pause(IDLE_CHECK_MS);
  }
}

/** Calls `step` with each item, at most `concurrency` at a time. */
export async function inParallel<Item>(
  items: readonly Item[],
  concurrency: number,
  step: (item: Item) => Promise<unknown>,
): Promise<void> {
  let next = 0;
  const work = async () => {
    while (next < items.length) await step(items[next++] as Item);
  };
  await Promise.all(Array.from({ length: concurrency }, work));
}
