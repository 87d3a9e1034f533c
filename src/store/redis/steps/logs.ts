// Logs on Redis. A change of a log is one operation of the function library. Further operations add
// and release the reference of a fork to its source. `library/logs.lua` describes the keys.

import { randomBytes } from "node:crypto";
import { BrokerError } from "../../../broker/errors.ts";
import {
  cutRecords,
  isJsonLog,
  isSameMediaType,
  isWholeCut,
  LOG_START,
  type LogName,
  type LogOffset,
  logNameOf,
  type OpenFrame,
  openFrame,
  recordCount,
} from "../../../broker/log-frame.ts";
import {
  type LogAppend,
  type LogAppendResult,
  type LogCreation,
  type LogDraft,
  type LogHead,
  type LogLimit,
  type LogOrigin,
  type LogStore,
  MAX_FORK_DEPTH,
} from "../../../broker/log-ports.ts";
import { runEach } from "../../sweep-failures.ts";
import type { Operations } from "../operations.ts";
import type { RedisStorePorts } from "../ports.ts";
import {
  decodeStoredLog,
  endingIndex,
  endingOf,
  hasConfiguration,
  logPlace,
  namesIn,
  newReference,
  originText,
  type StoredLog,
  withoutTrailer,
} from "./log-head.ts";
import { createLogReads, firstFrame } from "./log-reads.ts";
import { createLogReferences } from "./log-references.ts";
import { ALL_BUCKETS, bucketsWithWork, sweepDue } from "./sweep-buckets.ts";

const MISSING = 1;
const DELETED = 2;
const CREATED = 3;
const EXISTS = 4;
const FULL = 5;
/** Verdicts of `log_append`. The number of a verdict is its index plus 1. */
const APPEND_VERDICTS = [
  ...(["missing", "deleted", "appended", "repeated", "closed", "other_type"] as const),
  ...([
    "stale_epoch",
    "bad_start",
    "gap",
    "out_of_order",
    "bytes",
    "records",
    "producers",
  ] as const),
] as const;
/** Byte offsets of the fields in a reply of `log_append`. */
const POSITION_AT = 2;
const CHECK_AT = 10;
const NUMBER_AT = 22;
const CREATE_BYTES = 38;
const APPEND_BYTES = 26;
const COUNT_BYTES = 8;
/** Number of bytes of the source that are read to find the frame after a fork offset. */
const FRAME_READ_BYTES = 4096;

interface RedisLogs extends LogStore {
  /** Removes expired logs, and references that are no longer needed. */
  sweepLogs(isStopped: () => boolean): Promise<void>;
}

/** Data that a fork inherits from its source. */
interface Inheritance {
  readonly reference: string;
  readonly start: LogOffset;
  readonly records: number;
  /**
   * Records that the fork inherits from the source frame inside which it begins. They become the
   * fork's first frame. `undefined` if the fork begins between two frames.
   */
  readonly cut: OpenFrame | undefined;
  readonly source: LogHead;
}

export function createRedisLogs(ports: RedisStorePorts, operations: Operations): RedisLogs {
  const { link, clock, onError } = ports;
  const { keys } = link;
  const reads = createLogReads(ports);
  const references = createLogReferences(ports, { operations, reads });

  /** Releases a reference. If that fails, a sweep releases it later. */
  async function release(reference: string): Promise<void> {
    await references
      .release(reference)
      .catch((error: unknown) =>
        onError(error, "Could not release a reference to a fork's source. A sweep will release it"),
      );
  }

  async function create(
    name: LogName,
    draft: LogDraft,
    inheritance: Inheritance | undefined,
  ): Promise<LogCreation> {
    const { bucket, base, text, key } = logPlace(keys, name);
    const body = draft.records.length > 0 ? openFrame(draft.records) : undefined;
    const frames = [inheritance?.cut, body].filter((frame) => frame !== undefined);
    const { reference = "", start = LOG_START, records = 0, source } = inheritance ?? {};
    const inheritsExpiry = draft.ttlS === undefined && draft.expiresAtMs === undefined;
    const { ttlS, expiresAtMs } = (inheritsExpiry ? source : undefined) ?? draft;
    const numbers = Buffer.alloc(CREATE_BYTES + COUNT_BYTES * frames.length);
    let at = numbers.writeDoubleBE(ttlS ?? 0);
    at = numbers.writeDoubleBE(expiresAtMs ?? 0, at);
    at = randomBytes(4).copy(numbers, at) + at;
    at = numbers.writeUInt8(endingIndex(draft.closed), at);
    at = numbers.writeDoubleBE(start.position, at);
    at = numbers.writeUInt32BE(start.check, at);
    at = numbers.writeUInt32BE(records, at);
    at = numbers.writeUInt8(frames.length, at);
    for (const frame of frames) {
      at = numbers.writeUInt32BE(frame.records, at);
      at = numbers.writeUInt32BE(frame.crc, at);
    }
    const contentType = draft.contentType ?? source?.contentType ?? "";
    const reply = await operations.run(
      { bucket, key },
      {
        ...{ name: "log_create", numbers },
        texts: [
          ...[base, text, contentType, originText(draft), reference],
          ...frames.map(withoutTrailer),
        ],
      },
    );
    const [verdict, detail, fields] = reply as readonly [
      ...[number, Buffer | number | undefined, (Buffer | null)[]],
    ]; // as `log_create` specifies
    switch (verdict) {
      case DELETED:
        return { verdict: "deleted" };
      case CREATED:
        await release(String(detail));
        return { verdict: "created", head: decodeStoredLog(fields).head };
      case EXISTS:
        return existing(decodeStoredLog(fields), draft);
      case FULL:
        return { verdict: "full", limit: detail === 1 ? "bytes" : "records" };
      default:
        throw unknownVerdict(verdict);
    }
  }

  async function createFork(
    name: LogName,
    draft: LogDraft,
    origin: LogOrigin,
  ): Promise<LogCreation> {
    const present = await reads.stored(name);
    if (present === "deleted") return { verdict: "deleted" };
    if (present !== "missing") return existing(present, draft);
    const { source } = origin;
    const reference = newReference(source, name);
    const place = logPlace(keys, source);
    const reply = await operations.run(place, {
      ...{ name: "log_reference", texts: [place.base, place.text, reference] },
    });
    const [verdict] = reply as readonly number[];
    if (verdict === MISSING) return { verdict: "source_missing" };
    if (verdict === DELETED) return { verdict: "source_deleted" };
    const inheritance = await inherit(draft, origin, reference);
    const creation =
      "verdict" in inheritance ? inheritance : await create(name, draft, inheritance);
    if (creation.verdict === "created")
      references.confirm(reference).catch(() => {}); // a sweep confirms it later
    else await release(reference);
    return creation;
  }

  /**
   * Reads the data that a fork inherits from its source. The fork must already have a reference to
   * the source.
   */
  async function inherit(
    { contentType }: LogDraft,
    { source, offset, subOffset }: LogOrigin,
    reference: string,
  ): Promise<Inheritance | Exclude<LogCreation, { readonly head: unknown }>> {
    const result = await reads.frames(source, { from: offset, maxBytes: FRAME_READ_BYTES }, true);
    if (typeof result === "string") throw new BrokerError("unavailable");
    const { head } = result.log;
    if (contentType !== undefined && !isSameMediaType(contentType, head.contentType))
      return { verdict: "source_type" };
    const start = offset ?? head.tail;
    if (offset !== undefined && result.frames === undefined) return { verdict: "bad_offset" };
    const first = result.frames && firstFrame(result.frames, start);
    if (first === undefined && subOffset > 0) return { verdict: "bad_sub_offset" };
    if (await isDeepest(result.log)) return { verdict: "full", limit: "depth" };
    if (first === undefined)
      return { reference, start, records: head.records, cut: undefined, source: head };
    const { frame, next } = first;
    const inherited = { reference, start, records: frame.first, cut: undefined, source: head };
    if (subOffset === 0) return inherited;
    const isJson = isJsonLog(head.contentType);
    const records = cutRecords(frame, subOffset, isJson);
    if (records === undefined) return { verdict: "bad_sub_offset" };
    if (!isWholeCut(frame, subOffset, isJson)) return { ...inherited, cut: openFrame(records) };
    return { ...inherited, start: next, records: frame.first + recordCount(frame) };
  }

  /** Returns true if a fork of the log would exceed `MAX_FORK_DEPTH`. */
  async function isDeepest(log: StoredLog): Promise<boolean> {
    let { reference } = log;
    for (let depth = 1; depth < MAX_FORK_DEPTH && reference !== undefined; depth++) {
      const source = await reads.stored(namesIn(reference).source, true);
      reference = typeof source === "string" ? undefined : source.reference;
    }
    return reference !== undefined;
  }

  /**
   * Stores the time of a use if the stored time is older than a quarter of the time to live, so
   * that the log does not expire. A server that rejects writes, for example because its memory is
   * full, must not make the read fail. The next read tries again.
   */
  async function recordUse(name: LogName, { head, usedAtMs }: StoredLog): Promise<void> {
    if (head.ttlS === undefined || usedAtMs === undefined) return;
    if (clock() - usedAtMs < (head.ttlS * 1000) / 4) return;
    const place = logPlace(keys, name);
    await operations
      .run(place, { name: "log_use", texts: [place.base, place.text] })
      .catch(() => undefined);
  }

  async function expireLog(text: string): Promise<boolean> {
    const place = logPlace(keys, logNameOf(text));
    const reply = await operations.run(place, {
      ...{ name: "log_expire", texts: [place.base, place.text] },
    });
    await references.release(String((reply as readonly unknown[])[1]));
    return true;
  }

  return {
    createLog: (name, draft) =>
      draft.origin === undefined
        ? create(name, draft, undefined)
        : createFork(name, draft, draft.origin),

    async appendLog(name, append) {
      const { bucket, base, text, key } = logPlace(keys, name);
      const { records, contentType, producer, order, close } = append;
      const frame = records.length > 0 ? openFrame(records) : undefined;
      const numbers = Buffer.allocUnsafe(APPEND_BYTES);
      numbers.writeUInt32BE(frame?.records ?? 0, 0);
      numbers.writeUInt32BE(frame?.crc ?? 0, 4);
      numbers.writeUInt8(endingIndex(close), 8);
      numbers.writeUInt8(order === undefined ? 0 : 1, 9);
      numbers.writeDoubleBE(producer?.epoch ?? 0, 10);
      numbers.writeDoubleBE(producer?.number ?? 0, 18);
      const reply = await operations.run(
        { bucket, key },
        {
          ...{ name: "log_append", numbers },
          texts: [
            ...[base, text, frame === undefined ? "" : withoutTrailer(frame)],
            ...[contentType ?? "", producer?.id ?? "", order ?? ""],
          ],
        },
      );
      return appendResult(reply as Buffer, append);
    },

    async logHead(name) {
      const log = await reads.stored(name);
      return typeof log === "string" ? log : log.head;
    },

    async readLog(name, range) {
      const result = await reads.frames(name, range);
      if (typeof result === "string") return { verdict: result };
      const { log, frames } = result;
      if (range.from !== undefined && frames === undefined) return { verdict: "lost" };
      await recordUse(name, log);
      const { head } = log;
      const { bytes, next } = frames ?? { bytes: Buffer.alloc(0), next: head.tail };
      return {
        ...{ verdict: "read", head, start: range.from ?? head.tail, next },
        pieces: bytes.length > 0 ? [bytes] : [],
      };
    },

    async deleteLog(name) {
      const { bucket, base, text, key } = logPlace(keys, name);
      const reply = await operations.run(
        { bucket, key },
        { name: "log_delete", texts: [base, text] },
      );
      const [verdict, reference] = reply as readonly [number, Buffer]; // as `log_delete` specifies
      if (verdict === MISSING) return "missing";
      if (verdict === DELETED) return "deleted";
      await release(String(reference));
      return "done";
    },

    async sweepLogs(isStopped) {
      const buckets = link.isCluster
        ? ALL_BUCKETS
        : await bucketsWithWork(link, "logExpiry", [["-inf", `${clock()}`]]);
      const expireIn = (bucket: number) =>
        sweepDue(link, keys.bucket("logExpiry", bucket), {
          ...{ nowMs: clock(), isStopped, process: expireLog },
        });
      // A bucket whose primary is down does not prevent the sweep of the other buckets.
      const sweeps = buckets.map((bucket) => () => expireIn(bucket));
      await runEach([...sweeps, () => references.sweep(isStopped)]);
    },
  };
}

function existing(log: StoredLog, draft: LogDraft): LogCreation {
  return hasConfiguration(log, draft)
    ? { verdict: "exists", head: log.head }
    : { verdict: "conflict" };
}

export function appendResult(
  reply: Buffer,
  { producer }: Pick<LogAppend, "producer">,
): LogAppendResult {
  const [code = 0, ending = 0] = reply;
  const verdict = APPEND_VERDICTS[code - 1];
  switch (verdict) {
    case undefined:
      throw unknownVerdict(code);
    case "bytes":
    case "records":
    case "producers":
      return { verdict: "full", limit: verdict };
    case "missing":
    case "deleted":
    case "other_type":
    case "bad_start":
    case "out_of_order":
      return { verdict };
    case "gap":
      return { verdict, expected: reply.readDoubleBE(NUMBER_AT) };
    case "stale_epoch":
      return { verdict, epoch: reply.readDoubleBE(NUMBER_AT) };
  }
  const tail = {
    position: reply.readDoubleBE(POSITION_AT),
    check: reply.readUInt32BE(CHECK_AT),
  };
  const closed = endingOf(ending);
  if (verdict === "closed") return { verdict, tail, closed: closed ?? "closed" };
  const number = reply.readDoubleBE(NUMBER_AT);
  return {
    ...{ verdict, tail, closed },
    producer: producer && { epoch: producer.epoch, number },
  };
}

/** Returns the limit that a verdict of `log_append` names. */
export function limitOf(code: number): LogLimit {
  const verdict = APPEND_VERDICTS[code - 1];
  if (verdict === "bytes" || verdict === "records" || verdict === "producers") return verdict;
  throw unknownVerdict(code);
}

function unknownVerdict(code: number): BrokerError {
  return new BrokerError("internal", { message: `Redis replied with the unknown verdict ${code}` });
}
