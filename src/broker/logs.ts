// Operations on logs. Callers must already have checked the user's rights.

import { deferred } from "../lib/deferred.ts";
import { BrokerError, isTransient } from "./errors.ts";
import type { LogCursors } from "./log-cursors.ts";
import { isSameOffset, type LogName, logNameText } from "./log-frame.ts";
import type { LogAppend, LogAppendResult, LogRange, LogRead, LogStore } from "./log-ports.ts";

export interface Logs extends Pick<LogStore, "createLog" | "logHead" | "deleteLog"> {
  /**
   * Returns the frames from the offset to the tail, but at most about `maxBytes` bytes. May read
   * the store several times, because one read may end early, for example where a fork's own frames
   * begin.
   */
  read(name: LogName, range: LogRange): Promise<LogRead>;
  /**
   * Appends in the same way as the store's `appendLog`. If earlier numbers of the append's producer
   * are missing, waits up to `GAP_WAIT_MS` for them, because a producer's requests can overtake
   * each other. Does not wait if a limit on waiting appends is reached (`MAX_WAITING_PER_LOG`,
   * `MAX_WAITING_BYTES`).
   */
  append(name: LogName, append: LogAppend): Promise<LogAppendResult>;
  /** Does the same as `append`, but calls `attempt` instead of the store's `appendLog`. */
  appendInOrder(
    name: LogName,
    append: Pick<LogAppend, "records">,
    attempt: AppendAttempt,
  ): Promise<LogAppendResult>;
}

type AppendAttempt = () => Promise<LogAppendResult>;

interface LogPorts {
  readonly store: LogStore;
  readonly cursors: Pick<LogCursors, "open">;
  /** Called for each append that is refused because its producer's earlier numbers are missing. */
  readonly onGap: () => void;
}

const GAP_WAIT_MS = 500;
/**
 * Maximum total size of the records in appends that wait for earlier appends of their producers.
 */
const MAX_WAITING_BYTES = 16 * 1024 * 1024;
/**
 * Maximum number of appends that wait on one log. Each waiting append is tried again whenever the
 * log grows.
 */
const MAX_WAITING_PER_LOG = 16;
/**
 * Bearer of the cursors of all waiting appends. Together, these cursors can use only a fraction of
 * the readers that the node allows (see `reader-table.ts`).
 */
const WAITING_APPENDS = "waiting appends";
/** Number of bytes charged for each waiting append in addition to its records. */
const APPEND_OVERHEAD_BYTES = 1024;

export function createLogs({ store, cursors, onGap }: LogPorts): Logs {
  let waitingBytes = 0;
  /** Number of waiting appends by log. */
  const waiting = new Map<string, number>();

  /**
   * Retries the append whenever the log has grown, until the gap is closed or `GAP_WAIT_MS` have
   * passed.
   */
  async function appendAfterGap(
    name: LogName,
    attempt: AppendAttempt,
    gap: LogAppendResult,
  ): Promise<LogAppendResult> {
    let growth = deferred();
    let isLate = false;
    const cursor = await cursors.open(
      { name, from: undefined, bearer: WAITING_APPENDS },
      {
        push() {
          growth.resolve();
          return true;
        },
        ended: () => growth.resolve(),
      },
    );
    const timer = setTimeout(() => {
      isLate = true;
      growth.resolve();
    }, GAP_WAIT_MS);
    try {
      let result = gap;
      while (result.verdict === "gap" && !isLate) {
        await growth.promise;
        growth = deferred();
        result = await attempt();
      }
      return result;
    } finally {
      clearTimeout(timer);
      cursor.stop();
    }
  }

  async function waitForGap(
    name: LogName,
    { records }: Pick<LogAppend, "records">,
    { attempt, gap }: { readonly attempt: AppendAttempt; readonly gap: LogAppendResult },
  ): Promise<LogAppendResult> {
    const bytes = APPEND_OVERHEAD_BYTES + sizeOf(records);
    const log = logNameText(name);
    const count = waiting.get(log) ?? 0;
    if (waitingBytes + bytes > MAX_WAITING_BYTES || count >= MAX_WAITING_PER_LOG) return gap;
    waitingBytes += bytes;
    waiting.set(log, count + 1);
    try {
      return await appendAfterGap(name, attempt, gap);
    } catch (error) {
      if (error instanceof BrokerError && isTransient(error)) return gap;
      throw error;
    } finally {
      waitingBytes -= bytes;
      const others = (waiting.get(log) ?? 1) - 1;
      if (others === 0) waiting.delete(log);
      else waiting.set(log, others);
    }
  }

  async function appendInOrder(
    name: LogName,
    append: Pick<LogAppend, "records">,
    attempt: AppendAttempt,
  ): Promise<LogAppendResult> {
    const gap = await attempt();
    if (gap.verdict !== "gap") return gap;
    const result = await waitForGap(name, append, { attempt, gap });
    if (result.verdict === "gap") onGap();
    return result;
  }

  return {
    createLog: (name, draft) => store.createLog(name, draft),
    logHead: (name) => store.logHead(name),
    deleteLog: (name) => store.deleteLog(name),

    async read(name, range) {
      const first = await store.readLog(name, range);
      if (first.verdict !== "read") return first;
      let { head, next, pieces } = first;
      let remainingBytes = range.maxBytes - sizeOf(pieces);
      while (!isSameOffset(next, head.tail) && remainingBytes > 0) {
        const more = await store.readLog(name, { from: next, maxBytes: remainingBytes });
        if (more.verdict !== "read" || more.pieces.length === 0) break;
        ({ head, next } = more);
        pieces = [...pieces, ...more.pieces];
        remainingBytes -= sizeOf(more.pieces);
      }
      return { ...first, head, next, pieces };
    },

    append: (name, append) => appendInOrder(name, append, () => store.appendLog(name, append)),
    appendInOrder,
  };
}

function sizeOf(pieces: readonly Uint8Array[]): number {
  return pieces.reduce((sum, { length }) => sum + length, 0);
}
