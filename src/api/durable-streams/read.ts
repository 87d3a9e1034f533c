// The calls that read streams: the catch-up read, the long poll, the feed of server-sent events,
// and HEAD [PROTOCOL.md 5.5 to 5.8].

import type { CursorEnd } from "../../broker/cursor.ts";
import type { CursorTarget, LogBatch, LogCursors } from "../../broker/log-cursors.ts";
import {
  formatOffset,
  isSameOffset,
  LOG_START,
  type LogOffset,
  parseOffset,
} from "../../broker/log-frame.ts";
import type { LogHead } from "../../broker/log-ports.ts";
import type { Logs } from "../../broker/logs.ts";
import { Deadlines } from "../../lib/deadlines.ts";
import type { HttpReply, HttpRequest } from "../../transport/types.ts";
import { edgeReply, errorReply } from "../errors.ts";
import type { RouteReply } from "../route.ts";
import type { Viewers } from "../viewers.ts";
import { type Admission, type AdmittedStream, groupOf, type StreamCaller } from "./admission.ts";
import { liveCursor } from "./live-cursor.ts";
import { bodyOf, recordsInPieces } from "./records.ts";
import { CURSOR, offsetHeaders, streamReply, UP_TO_DATE } from "./replies.ts";
import type { StreamFeeds } from "./stream-feeds.ts";

/**
 * Charges a request to the bearer of a signed URL. The returned function must be called once with
 * the number of bytes that are read or written. Throws `rate_limited` if the budget is used up.
 */
export type BeginWork = (bearer: string) => (bytes: number) => void;

interface ReadPorts {
  readonly logs: Pick<Logs, "logHead" | "read">;
  readonly cursors: Pick<LogCursors, "open">;
  readonly admission: Pick<Admission, "streamOf" | "recheck">;
  readonly viewers: Pick<Viewers, "beginRead">;
  readonly feeds: StreamFeeds;
  readonly beginWork: BeginWork;
  readonly longPollMs: number;
  /** Wall clock in Unix milliseconds. */
  readonly clock: () => number;
}

/** The position from which a request reads, and how it waits for data. */
interface ReadPlace {
  /** Offset to read from. `undefined` means the tail. */
  readonly from: LogOffset | undefined;
  readonly live: "no" | "long-poll" | "sse";
  readonly cursor: string | undefined;
}

type TypedHead = Pick<LogHead, "contentType">;

const START = "-1";
const NOW = "now";
export const REPLY_BYTES = 1024 * 1024;
const CACHEABLE = "max-age=60, stale-while-revalidate=300";

export function createReadCalls(ports: ReadPorts) {
  const { logs, cursors, admission, viewers, feeds, beginWork, clock } = ports;
  const deadlines = new Deadlines<LongPoll>(ports.longPollMs, (poll) => poll.expire());

  async function read(request: HttpRequest): Promise<RouteReply> {
    const stream = admission.streamOf(request);
    const { name, caller } = stream;
    const begin = () => beginFor(caller);
    if (request.method === "HEAD") {
      begin()(0);
      return headReply(await logs.logHead(name));
    }
    const place = readPlace(request.query);
    if ("refusal" in place) return place.refusal;
    const { from } = place;
    if (place.live === "no") return chargedFor(begin(), () => catchUp(request, from, stream));
    const head = await logs.logHead(name);
    if (typeof head === "string") return missingReply(head);
    // A live read is charged for the data that is available when it begins, but not for data that
    // arrives while it waits.
    const { tail } = head;
    const behind = Math.max(0, tail.position - (from ?? tail).position);
    begin()(place.live === "sse" ? behind : Math.min(behind, REPLY_BYTES));
    const { bearer } = caller;
    const target = { name, from, viewer: viewerOf(request, stream), bearer };
    if (place.live === "long-poll") return longPoll(request, place, { head, caller, target });
    const cursor = liveCursor(clock(), place.cursor);
    const feed = await feeds.open(request, { target, head, cursor, caller });
    return typeof feed === "string" ? endReply(request, feed) : feed;
  }

  /**
   * Charges a request to the bearer of a signed URL or to a viewer, as `BeginWork` describes. Other
   * callers are not charged.
   */
  function beginFor({ kind, uid, bearer }: StreamCaller): ReturnType<BeginWork> {
    if (bearer !== undefined) return beginWork(bearer);
    return kind === "viewer" && uid !== undefined ? viewers.beginRead(uid) : FREE;
  }

  function viewerOf(request: HttpRequest, stream: AdmittedStream): CursorTarget["viewer"] {
    const { kind, uid } = stream.caller;
    if (kind !== "viewer" || uid === undefined) return undefined;
    const mayStay = async () => (await admission.recheck(request)) === undefined;
    return { uid, groupId: groupOf(stream), mayStay };
  }

  async function catchUp(
    request: HttpRequest,
    from: LogOffset | undefined,
    { name, caller }: AdmittedStream,
  ): Promise<HttpReply> {
    const read = await logs.read(name, { from, maxBytes: REPLY_BYTES });
    if (read.verdict !== "read") return missingReply(read.verdict);
    const { head, start, next, pieces } = read;
    const isUpToDate = isSameOffset(next, head.tail);
    const closed = isUpToDate ? head.closed : undefined;
    const batch = { incarnation: head.incarnation, start, next, pieces, isUpToDate, closed };
    return batchReply(batch, head, { request, caller, from, headers: {} });
  }

  /**
   * Replies with the first frames after the offset, or with 204 if the log is closed without more
   * data or no data arrives within `longPollMs`.
   */
  async function longPoll(
    request: HttpRequest,
    { from, cursor }: ReadPlace,
    {
      head,
      caller,
      target,
    }: {
      readonly head: TypedHead;
      readonly caller: StreamCaller;
      readonly target: CursorTarget;
    },
  ): Promise<HttpReply> {
    const { contentType } = head;
    const poll = new LongPoll(contentType);
    const open = cursors.open(target, poll);
    request.onAborted(() => poll.expire());
    deadlines.add(poll, performance.now());
    const handle = await open.catch((error) => {
      deadlines.delete(poll);
      throw error;
    });
    const outcome = await poll.outcome;
    deadlines.delete(poll);
    handle.stop();
    if (typeof outcome === "string") return endReply(request, outcome);
    const headers = { [CURSOR]: liveCursor(clock(), cursor) };
    const { closed, next, pieces, isUpToDate } = outcome;
    if (hasRecords(pieces, contentType))
      return batchReply(outcome, head, {
        ...{ request, caller, from },
        headers: closed === undefined ? headers : {},
      });
    return streamReply(204, {
      ...offsetHeaders(next, closed !== undefined),
      ...(isUpToDate ? { [UP_TO_DATE]: "true" } : {}),
      ...(closed === undefined ? headers : {}),
    });
  }

  /**
   * Replies to a live read whose cursor has ended. If the viewer's access was revoked, checks the
   * viewer again. Returns the error reply of this check, or `unavailable` if the check succeeds.
   */
  async function endReply(request: HttpRequest, why: CursorEnd): Promise<HttpReply> {
    switch (why) {
      case "missing":
      case "deleted":
      case "lost":
        return missingReply(why);
      case "revoked":
        return (await admission.recheck(request)) ?? errorReply("unavailable");
      default:
        return errorReply("unavailable");
    }
  }

  return { read };
}

const FREE: ReturnType<BeginWork> = () => {};

async function chargedFor(
  charge: ReturnType<BeginWork>,
  run: () => Promise<HttpReply>,
): Promise<HttpReply> {
  let bytes = 0;
  try {
    const reply = await run();
    bytes = reply.body.length;
    return reply;
  } finally {
    charge(bytes);
  }
}

/** Waits until the first frames after an offset arrive, the log ends, or `expire` is called. */
class LongPoll {
  readonly outcome: Promise<LogBatch | CursorEnd>;
  readonly #contentType: string;
  #resolve: (outcome: LogBatch | CursorEnd) => void = () => {};
  #lastBatch: LogBatch | undefined;
  #isExpired = false;

  constructor(contentType: string) {
    this.#contentType = contentType;
    this.outcome = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  push(batch: LogBatch): boolean {
    this.#lastBatch = batch;
    const isNews = hasRecords(batch.pieces, this.#contentType) || batch.closed !== undefined;
    const isOver = isNews || this.#isExpired;
    if (isOver) this.#resolve(batch);
    return !isOver;
  }

  ended(why: CursorEnd): void {
    this.#resolve(why);
  }

  expire(): void {
    this.#isExpired = true;
    if (this.#lastBatch !== undefined) this.#resolve(this.#lastBatch);
  }
}

/**
 * Returns true if the frames contain records for readers. The start of a channel's stream contains
 * no such records.
 */
function hasRecords(pieces: readonly Uint8Array[], contentType: string): boolean {
  return pieces.length > 0 && recordsInPieces(pieces, contentType).length > 0;
}

function readPlace(query: string): ReadPlace | { readonly refusal: HttpReply } {
  const parameters = new URLSearchParams(query);
  const offsets = parameters.getAll("offset");
  const [offset] = offsets;
  const live = parameters.get("live");
  if (offsets.length > 1) return badParameter("offset", "must not be repeated");
  if (live !== null && live !== "long-poll" && live !== "sse")
    return badParameter("live", "must be long-poll or sse");
  if (live !== null && offset === undefined) return badParameter("offset", "is required with live");
  const cursor = parameters.get("cursor") ?? undefined;
  const place = { live: live ?? "no", cursor } as const;
  if (offset === NOW) return { ...place, from: undefined };
  const from = offset === undefined || offset === START ? LOG_START : parseOffset(offset);
  if (from === undefined) return badParameter("offset", "is not a stream offset");
  return { ...place, from };
}

function badParameter(name: string, problem: string): { readonly refusal: HttpReply } {
  return {
    refusal: errorReply("bad_request", {
      message: `${name} ${problem}`,
      details: [{ path: name, message: problem }],
    }),
  };
}

function headReply(head: LogHead | "missing" | "deleted"): HttpReply {
  if (typeof head === "string") return missingReply(head);
  const { contentType, tail, closed, ttlS, expiresAtMs } = head;
  return streamReply(200, {
    ...offsetHeaders(tail, closed !== undefined),
    "content-type": contentType,
    ...(ttlS === undefined ? {} : { "stream-ttl": String(ttlS) }),
    ...(expiresAtMs === undefined
      ? {}
      : { "stream-expires-at": new Date(expiresAtMs).toISOString() }),
  });
}

/**
 * Returns the reply with a batch of frames. A reply to a read from the tail must not be cached,
 * because the tail moves while the URL stays the same.
 */
function batchReply(
  batch: LogBatch,
  { contentType }: TypedHead,
  {
    request,
    caller,
    from,
    headers,
  }: {
    readonly request: HttpRequest;
    readonly caller: StreamCaller;
    readonly from: LogOffset | undefined;
    readonly headers: Readonly<Record<string, string>>;
  },
): HttpReply {
  const scope = caller.kind === "anonymous" ? "public" : "private";
  const etag = etagOf(batch);
  const cached =
    from === undefined
      ? { "cache-control": scope === "public" ? "no-store" : "private, no-store" }
      : { etag, "cache-control": `${scope}, ${CACHEABLE}` };
  if (from !== undefined && matches(request.headers["if-none-match"], etag))
    return { status: 304, headers: { ...cached, ...batchHeaders(batch) }, body: "" };
  return {
    status: 200,
    headers: {
      ...{ ...cached, "content-type": contentType },
      ...batchHeaders(batch),
      ...headers,
    },
    body: bodyOf(recordsInPieces(batch.pieces, contentType), contentType),
  };
}

function batchHeaders({ next, isUpToDate, closed }: LogBatch): Readonly<Record<string, string>> {
  return {
    ...offsetHeaders(next, closed !== undefined),
    ...(isUpToDate ? { [UP_TO_DATE]: "true" } : {}),
  };
}

/**
 * Returns the entity tag of the bytes between two offsets. The tag also shows whether the reply
 * reaches the end of a closed log, because such a reply has an additional header.
 */
function etagOf({ incarnation, start, next, closed }: LogBatch): string {
  const end = closed === undefined ? "" : ":closed";
  return `"${incarnation.toString(16)}:${formatOffset(start)}:${formatOffset(next)}${end}"`;
}

function matches(ifNoneMatch: string | undefined, etag: string): boolean {
  if (ifNoneMatch === undefined) return false;
  return ifNoneMatch.split(",").some((tag) => {
    const text = tag.trim();
    return text === "*" || text.replace(/^W\//, "") === etag;
  });
}

function missingReply(why: "missing" | "deleted" | "lost"): HttpReply {
  if (why === "missing") return errorReply("stream_unknown");
  return edgeReply(why === "deleted" ? "stream_deleted" : "offset_lost");
}
