// Makes a starting node wait until its store can be used. Opens the API if the first attempt fails
// or takes longer than `OPEN_API_MS`. Keeps no state.

import { setTimeout as pause } from "node:timers/promises";
import { waitAtMost } from "../lib/wait-at-most.ts";
import { roomLogger } from "../observe/logger.ts";
import { RedisAway } from "../redis/errors.ts";
import type { Node } from "./node.ts";
import { reasonOf, StartError } from "./start-error.ts";

/** Time after which the API is opened if the store cannot be used yet. */
const OPEN_API_MS = 1000;
const RETRY_MS = 500;
const LOG_MS = 5000;
const NO_REASON = "Redis has not responded yet";

interface WaitPorts {
  readonly openApi: () => Promise<unknown>;
  readonly signal: AbortSignal;
}

/**
 * Waits until the store can be reached. Meanwhile, unless `start.waitForStoreS` is 0, opens the API
 * if the first attempt fails or takes longer than `OPEN_API_MS`. Throws a StartError if a later
 * attempt would also fail, if the wait exceeds `start.waitForStoreS`, or if `signal` is aborted.
 */
export async function waitForStore(node: Node, { openApi, signal }: WaitPorts): Promise<void> {
  const { drivers, config } = node;
  const limitS = config.start.waitForStoreS;
  const log = roomLogger(node.logger, "store");
  const beganMs = performance.now();
  const waitedMs = () => performance.now() - beganMs;
  const fields = () => ({ waitedS: Math.round(waitedMs() / 1000), limitS });
  let reason = NO_REASON;
  let reported = "";
  let showing: Promise<unknown> | undefined;
  let logging: NodeJS.Timeout | undefined;
  const report = () => {
    reason = drivers.reason() ?? reason;
    reported = reason;
    log.warn({ reason, ...fields() }, "The node waits for its store");
  };

  function show(): Promise<unknown> {
    if (showing !== undefined) return showing;
    node.status = "waiting";
    logging = setInterval(report, LOG_MS);
    showing = openApi().then(report);
    showing.catch(() => undefined); // a later call to `openApi` throws the error
    return showing;
  }

  const close = () => void drivers.close();
  signal.addEventListener("abort", close);
  const opening = limitS === 0 ? undefined : setTimeout(show, OPEN_API_MS);
  try {
    for (;;) {
      const failure = await reach(node, limitS * 1000 - waitedMs());
      if (failure === undefined) break;
      if (!(failure instanceof RedisAway)) throw unusable(failure);
      reason = failure.message || (drivers.reason() ?? reason);
      if (waitedMs() >= limitS * 1000)
        throw unusable(
          limitS === 0
            ? failure
            : `${reason}. The node waited ${limitS} s for it (start.waitForStoreS)`,
        );
      await show();
      if (reported === NO_REASON) report();
      await pause(RETRY_MS, undefined, { signal });
    }
  } catch (error) {
    if (signal.aborted) throw stoppedError();
    throw error;
  } finally {
    clearTimeout(opening);
    clearInterval(logging);
    signal.removeEventListener("abort", close);
  }
  if (showing === undefined) return;
  node.status = "starting";
  log.info(fields(), "The store can be used now");
}

/**
 * Calls `open`, which opens the store or reads its data, and opens the API if this takes longer
 * than `OPEN_API_MS`. There is no time limit, because a check may read all data. Rejects with the
 * error of `open`, or with a StartError if the API cannot be opened or `signal` is aborted.
 */
export async function whileStoreOpens<Result>(
  node: Node,
  { openApi, signal }: WaitPorts,
  open: (signal: AbortSignal) => Promise<Result>,
): Promise<Result> {
  const failing = new AbortController();
  const opening = setTimeout(() => {
    node.status = "waiting";
    openApi().catch((error: unknown) => failing.abort(error));
  }, OPEN_API_MS);
  try {
    return await open(AbortSignal.any([signal, failing.signal]));
  } catch (error) {
    failing.signal.throwIfAborted();
    if (signal.aborted) throw stoppedError();
    throw error;
  } finally {
    clearTimeout(opening);
    node.status = "starting";
  }
}

function stoppedError(): StartError {
  return new StartError("The node was stopped while it waited for its store");
}

/**
 * Tries to reach the store. Returns the error, or `undefined` if the store was reached. After
 * `leftMs`, returns a `RedisAway` with an empty message. If `leftMs` is not positive, there is no
 * time limit.
 */
async function reach({ drivers }: Node, leftMs: number): Promise<unknown> {
  let failure: unknown = new RedisAway("");
  const attempt = drivers.reach().then(
    () => {
      failure = undefined;
    },
    (error: unknown) => {
      failure = error;
    },
  );
  await (leftMs > 0 ? waitAtMost(attempt, leftMs) : attempt);
  return failure;
}

function unusable(error: unknown): StartError {
  return new StartError(`Redis cannot be used: ${reasonOf(error)}`);
}
