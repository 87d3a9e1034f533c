// Operations of the function library. Operations that are queued in one turn of the event loop for
// one server (on a Redis Cluster: for one bucket) are sent together, within the limits of
// `turn.ts`. An operation that fails does not affect the others.

import { BrokerError } from "../../broker/errors.ts";
import { asBrokerError } from "../../redis/errors.ts";
import { type Library, loadLibrary } from "../../redis/library.ts";
import { type Arg, SHARED } from "../../redis/script.ts";
import { lua, type RedisStorePorts } from "./ports.ts";
import { EVENT_CONSTANTS } from "./steps/events.ts";
import { permissionTables } from "./steps/permission-tables.ts";
import { type Operation, TurnQueue } from "./turn.ts";

/**
 * Operations of the library. The code of an operation is its position in this list, starting at 1.
 */
const OPERATIONS = [
  ...(["log_create", "log_append", "log_delete", "log_use", "log_expire"] as const),
  ...(["log_reference", "log_confirm", "log_release", "log_released"] as const),
  ...(["stream_event", "stream_start", "stream_end"] as const),
  ...(["stream_create", "stream_append"] as const),
] as const;
const CODES = new Map(OPERATIONS.map((name, at) => [name, at + 1] as const));

const library = (name: string) => new URL(`./library/${name}.lua`, import.meta.url);

/** Functions that other files of the library call. */
const PERMISSION = ["group_refusal", "person_refusal"];
const LOGS = [
  ...["open_log", "change_log", "seal_frame", "move_tail", "tail_of", "absence_of"],
  ...["append_refusal", "note_append", "appended_reply", "is_repeated", "full_verdict"],
  ...["note_field", "closed_reply"],
  ...["publish", "publish_append"],
  ...["begin_logs", "end_logs", "forget_failed_log", "read_log", ...namesOf("log_")],
];
const STREAMS = ["begin_streams", "write_pubs", "end_streams", ...namesOf("stream_")];

export const LIBRARY: Library = loadLibrary(
  library("call"),
  SHARED,
  ...scope(PERMISSION, lua("channel_record"), permissionTables(), lua("permission")),
  ...scope(LOGS, library("logs")),
  ...scope(
    STREAMS,
    ...["dedupe", "place", "entry", "append_event"].map(lua),
    ...[EVENT_CONSTANTS, library("streams")],
  ),
  `local OPERATIONS = { ${OPERATIONS.join(", ")} }`,
  library("turn"),
);

function namesOf(beginning: string): readonly string[] {
  return OPERATIONS.filter((name) => name.startsWith(beginning));
}

/**
 * Hides the locals of Lua files except the functions `names`, because a chunk of Lua can have at
 * most 200 locals.
 */
function scope(names: readonly string[], ...sources: readonly (URL | string)[]) {
  const list = names.join(", ");
  return [`local ${list} = (function()`, ...sources, `return ${list} end)()`];
}

const TURN = LIBRARY.function("turn", { isWriting: true });
/** Runs a turn that consists of `FREEING` operations, even if Redis is full. */
const FREE = LIBRARY.function("free", { isWriting: true });
const FREEING: ReadonlySet<string> = new Set<(typeof OPERATIONS)[number]>([
  ...(["log_delete", "log_expire", "log_confirm", "log_release", "log_released"] as const),
]);
export const READ_LOG = LIBRARY.function("read", { isWriting: false });

const FAILED = 255;
const CLUSTER_AT = 8;
const LIMITS_AT = 9;
const LIMITS = 7;
const OPERATION_BYTES = 300;

export type OperationReply = Buffer | readonly unknown[];

interface OperationDraft {
  readonly name: (typeof OPERATIONS)[number];
  /** Numeric arguments, in the format that the operation's comment in the library specifies. */
  readonly numbers?: Buffer;
  readonly texts: readonly (string | Buffer)[];
  /** Operations with the same `order` keep their order, even if a call fails. */
  readonly order?: string;
}

/** Runs operations. Rejects with `overloaded`, `unavailable`, `too_late` or `internal`. */
export interface Operations {
  /**
   * Queues an operation. `key` is any key of the bucket. Resolves with the reply when the change is
   * durable, including on the required replicas.
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
    const { dedupeWindowS, retentionS, maxChannelMessages, maxStreamBytes } = limits;
    const packed = Buffer.allocUnsafe(LIMITS_AT + 8 * LIMITS);
    packed.writeDoubleBE(clock(), 0);
    packed[CLUSTER_AT] = link.isCluster ? 1 : 0;
    let at = LIMITS_AT;
    for (const limit of [
      ...[maxBytes, maxRecords, maxProducers, dedupeWindowS * 1000],
      ...[retentionS * 1000, maxChannelMessages, maxStreamBytes],
    ])
      at = packed.writeDoubleBE(limit, at);
    return packed;
  }

  async function send(operations: readonly QueuedOperation[], timeoutMs: number): Promise<void> {
    const [first] = operations;
    if (first === undefined) return;
    const numbers: Buffer[] = [];
    const args: Arg[] = [];
    for (const { draft } of operations) {
      numbers.push(Buffer.from([CODES.get(draft.name) ?? 0]));
      if (draft.numbers !== undefined) numbers.push(draft.numbers);
      args.push(...draft.texts);
    }
    const reply = await link.callFunction(
      first.isFreeing ? FREE : TURN,
      [first.key],
      [settings(), Buffer.concat(numbers), link.keys.topicEnd, ...args],
      { isGathered: true, timeoutMs },
    );
    const durable = waitForReplicas(first.key);
    durable?.catch(() => {}); // each operation gets the rejection
    const replies = reply as readonly OperationReply[]; // see the header of `turn.lua`
    const refusal = replies[operations.length];
    // If Redis denied the publication, `errorOf` starts a check of the Redis user's rights.
    if (Buffer.isBuffer(refusal)) link.errorOf(TURN, refusal.toString("utf8", 1));
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
    // The function is asynchronous, so that a full queue causes a rejection like every other
    // failure.
    async run({ bucket, key }, draft) {
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
  readonly order: string | undefined;
  readonly isFreeing: boolean;
  readonly sinceMs = performance.now();
  readonly reply: Promise<OperationReply>;
  #resolve: (reply: OperationReply | Promise<OperationReply>) => void = () => {};
  #reject: (error: unknown) => void = () => {};

  constructor(key: string, draft: OperationDraft) {
    this.key = key;
    this.draft = draft;
    this.order = draft.order;
    this.isFreeing = FREEING.has(draft.name);
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
