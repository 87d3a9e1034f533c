// Operations of the function library. All operations of one turn of the event loop for one server
// (on a Redis Cluster: for one bucket) are one call. An operation that fails does not affect the
// others.

import { BrokerError } from "../../broker/errors.ts";
import { asBrokerError } from "../../redis/errors.ts";
import { type Library, loadLibrary } from "../../redis/library.ts";
import type { Arg } from "../../redis/script.ts";
import type { RedisStorePorts } from "./ports.ts";
import { type Operation, TurnQueue } from "./turn.ts";

const file = (name: string) => new URL(`./library/${name}.lua`, import.meta.url);
/** The functions of the store in Redis. */
export const LIBRARY: Library = loadLibrary(...["call", "logs", "turn"].map(file));
const TURN = LIBRARY.function("turn", { isWriting: true });
export const READ_LOG = LIBRARY.function("read", { isWriting: false });

/** Codes of operations: their indexes in `OPERATIONS` of `library/turn.lua`. */
export const LOG_CREATE = 1;
export const LOG_APPEND = 2;
export const LOG_DELETE = 3;
export const LOG_USE = 4;
export const LOG_EXPIRE = 5;
export const LOG_REFERENCE = 6;
export const LOG_CONFIRM = 7;
export const LOG_RELEASE = 8;
export const LOG_RELEASED = 9;

const FAILED = 255;
const SETTINGS_BYTES = 41;
const OPERATION_BYTES = 300;

/** The reply of an operation: bytes, or a list. */
type OperationReply = Buffer | readonly unknown[];

interface OperationDraft {
  readonly code: number;
  /** The numbers of the operation, as the operation specifies. */
  readonly numbers?: Buffer;
  readonly texts: readonly (string | Buffer)[];
}

/** Runs operations. Rejects with `overloaded`, `unavailable`, `too_late` or `internal`. */
export interface Operations {
  /**
   * Queues an operation. `key` is any key of the bucket. The reply is durable, also on the replicas
   * that are required. Operations of a bucket run in the order of the calls.
   */
  run(
    place: { readonly bucket: number; readonly key: string },
    draft: OperationDraft,
  ): Promise<OperationReply>;
}

export function createOperations({
  link,
  clock,
  waitForReplicas,
  limits,
}: Pick<RedisStorePorts, "link" | "clock" | "waitForReplicas" | "limits">): Operations {
  const { maxActiveBytes: maxPendingBytes } = limits.logs;

  function settings(): Buffer {
    const { maxBytes, maxRecords, maxProducers } = limits.logs;
    const packed = Buffer.allocUnsafe(SETTINGS_BYTES);
    packed.writeDoubleBE(clock(), 0);
    packed[8] = link.isCluster ? 1 : 0;
    const logLimits = [maxBytes, maxRecords, maxProducers, limits.dedupeWindowS * 1000];
    for (const [at, limit] of logLimits.entries()) packed.writeDoubleBE(limit, 9 + 8 * at);
    return packed;
  }

  async function send(operations: readonly QueuedOperation[], timeoutMs: number): Promise<void> {
    const [first] = operations;
    if (first === undefined) return;
    const numbers: Buffer[] = [];
    const args: Arg[] = [];
    for (const { draft } of operations) {
      numbers.push(Buffer.from([draft.code]));
      if (draft.numbers !== undefined) numbers.push(draft.numbers);
      args.push(...draft.texts);
    }
    const reply = await link.callFunction(
      TURN,
      [first.key],
      [settings(), Buffer.concat(numbers), link.keys.topicEnd, ...args],
      { isGathered: true, timeoutMs },
    );
    const durable = waitForReplicas(first.key);
    durable?.catch(() => {}); // each operation gets the rejection
    const replies = reply as readonly OperationReply[]; // see the header of `turn.lua`
    for (const [at, operation] of operations.entries()) {
      const result = replies[at];
      if (result === undefined) operation.fail(new BrokerError("internal"));
      else if (Buffer.isBuffer(result) && result[0] === FAILED)
        operation.fail(link.errorOf(TURN, result.toString("utf8", 1)));
      else operation.settle(result, durable);
    }
  }

  const queue = new TurnQueue<QueuedOperation>({ link, maxPendingBytes, run: send });
  return {
    run({ bucket, key }, draft) {
      const operation = new QueuedOperation(key, draft);
      queue.add(bucket, operation);
      return operation.reply;
    },
  };
}

class QueuedOperation implements Operation {
  readonly key: string;
  readonly draft: OperationDraft;
  readonly bytes: number;
  readonly order = undefined;
  readonly sinceMs = performance.now();
  readonly reply: Promise<OperationReply>;
  #resolve: (reply: OperationReply | Promise<OperationReply>) => void = () => {};
  #reject: (error: unknown) => void = () => {};

  constructor(key: string, draft: OperationDraft) {
    this.key = key;
    this.draft = draft;
    this.bytes = draft.texts.reduce((sum, text) => sum + text.length, OPERATION_BYTES);
    this.reply = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  settle(reply: OperationReply, durable: Promise<void> | undefined): void {
    this.#resolve(durable === undefined ? reply : durable.then(() => reply));
  }

  fail(error: unknown): void {
    this.#reject(asBrokerError(error));
  }
}
