// The calls that create, append to, close and delete streams [PROTOCOL.md 5.1 to 5.4].

import type { ChannelLogs, SentStream } from "../../broker/channel-logs.ts";
import {
  isJsonLog,
  isSameMediaType,
  type LogOffset,
  mediaTypeOf,
  parseOffset,
} from "../../broker/log-frame.ts";
import {
  type LogAppend,
  type LogAppendResult,
  type LogCreation,
  type LogDraft,
  type LogLimit,
  type LogOrigin,
  type LogProducer,
  MAX_FORK_DEPTH,
  MAX_OPEN_STREAMS,
} from "../../broker/log-ports.ts";
import type { Logs } from "../../broker/logs.ts";
import { recordProblem } from "../../broker/stream-record.ts";
import type { HttpReply, HttpRequest } from "../../transport/types.ts";
import { edgeReply, errorReply } from "../errors.ts";
import type { Admission, AdmittedStream } from "./admission.ts";
import { parseStreamPath } from "./path.ts";
import { recordsOf } from "./records.ts";
import { badHeader, CLOSED, offsetHeaders, streamReply } from "./replies.ts";

interface WritePorts {
  readonly logs: Logs;
  readonly channelLogs: ChannelLogs;
  readonly admission: Pick<Admission, "streamOf" | "sourceOf">;
}

type Parsed<T> = { readonly value: T } | { readonly refusal: HttpReply };

const DEFAULT_TYPE = "application/octet-stream";
const CHANNEL_DEFAULT_TYPE = "application/json";
const CHANNEL_TYPES: ReadonlySet<string> = new Set([CHANNEL_DEFAULT_TYPE, "text/plain"]);
/** Matches a header value that a reply can safely repeat. */
const PRINTABLE = /^[\x20-\x7e]{1,256}$/;
const MAX_NAME_LENGTH = 256;
const MAX_PRODUCER_LENGTH = 128;
const TTL = /^(0|[1-9]\d{0,9})$/;
const INTEGER = /^\d{1,16}$/;
const SUB_OFFSET = /^(0|[1-9]\d*)$/;
/** Matches a date and time as defined in RFC 3339 5.6. */
const TIME = /^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})$/;

export function createWriteCalls({ logs, channelLogs, admission }: WritePorts) {
  async function create(request: HttpRequest): Promise<HttpReply> {
    const { scheme } = request;
    const { name, sent, urlPath } = admission.streamOf(request);
    const { host = "" } = request.headers;
    const location = `${scheme}://${host}${urlPath}`;
    if (sent !== undefined) return createInChannel(request, sent, location);
    const draft = await readDraft(request);
    if ("refusal" in draft) return draft.refusal;
    return creationReply(await logs.createLog(name, draft.value), location);
  }

  async function createInChannel(
    { headers, body }: HttpRequest,
    sent: SentStream,
    location: string,
  ): Promise<HttpReply> {
    const misplaced = Object.keys(NOT_IN_CHANNELS).find((name) => name in headers);
    if (misplaced !== undefined)
      return badHeader(
        NOT_IN_CHANNELS[misplaced] ?? misplaced,
        "is not allowed for a channel's stream",
      );
    const contentType = headers["content-type"] ?? CHANNEL_DEFAULT_TYPE;
    if (!PRINTABLE.test(contentType)) return badType().refusal;
    if (!CHANNEL_TYPES.has(mediaTypeOf(contentType)))
      return edgeReply(
        "stream_type",
        {},
        "The content type of a channel's stream must be application/json or text/plain",
      );
    const records = recordsOf(body, contentType);
    if (records === undefined) return notJson().refusal;
    const problem = problemIn(records, contentType);
    if (problem !== undefined) return problem;
    const isClosed = isTrue(headers[CLOSED]);
    return creationReply(
      await channelLogs.create(sent, { contentType, records, isClosed }),
      location,
    );
  }

  async function readDraft(request: HttpRequest): Promise<Parsed<LogDraft>> {
    const { headers } = request;
    const origin = await readOrigin(request);
    if (origin !== undefined && "refusal" in origin) return origin;
    const expiry = readExpiry(headers);
    if ("refusal" in expiry) return expiry;
    const source = origin?.value;
    const contentType =
      headers["content-type"] ?? (source === undefined ? DEFAULT_TYPE : undefined);
    if (contentType !== undefined && !PRINTABLE.test(contentType)) return badType();
    const recordType = contentType ?? (await typeOfSource(request, source));
    const records = recordsOf(request.body, recordType);
    if (records === undefined) return notJson();
    return {
      value: {
        ...{ contentType, records, origin: source, ...expiry.value },
        closed: isTrue(headers[CLOSED]) ? "closed" : undefined,
      },
    };
  }

  /**
   * Returns the content type of a fork's source. It applies to the body if the request has no
   * Content-Type. If the body is empty, no content type is needed, and the source is not read.
   */
  async function typeOfSource(
    { body }: HttpRequest,
    origin: LogOrigin | undefined,
  ): Promise<string> {
    if (body.length === 0 || origin === undefined) return DEFAULT_TYPE;
    const head = await logs.logHead(origin.source);
    return typeof head === "string" ? DEFAULT_TYPE : head.contentType;
  }

  async function readOrigin(request: HttpRequest): Promise<Parsed<LogOrigin> | undefined> {
    const { headers } = request;
    const from = headers["stream-forked-from"];
    const offsetText = headers["stream-fork-offset"];
    const subOffsetText = headers["stream-fork-sub-offset"];
    if (from === undefined) {
      if (offsetText === undefined && subOffsetText === undefined) return undefined;
      const name = offsetText === undefined ? "Stream-Fork-Sub-Offset" : "Stream-Fork-Offset";
      return { refusal: badHeader(name, "needs the Stream-Forked-From header") };
    }
    const place = readForkPlace(offsetText, subOffsetText);
    if ("refusal" in place) return place;
    const parsed = parseStreamPath(from);
    if ("refusal" in parsed) return parsed;
    const source = await admission.sourceOf(request, parsed.target);
    if (source === undefined) return { refusal: sourceUnknown() };
    return { value: { source, ...place.value } };
  }

  async function append(request: HttpRequest): Promise<HttpReply> {
    const stream = admission.streamOf(request);
    const draft = await readAppend(request, stream);
    if ("refusal" in draft) return draft.refusal;
    const { name, sent } = stream;
    const result = await (sent === undefined
      ? logs.append(name, draft.value)
      : channelLogs.append(sent, draft.value));
    return appendReply(result, draft.value);
  }

  async function readAppend(
    { headers, body }: HttpRequest,
    stream: AdmittedStream,
  ): Promise<Parsed<LogAppend>> {
    const closes = isTrue(headers[CLOSED]);
    const contentType = headers["content-type"];
    if (body.length === 0 && !closes)
      return {
        refusal: errorReply("bad_request", {
          message: "The body must not be empty, unless the request has Stream-Closed: true",
        }),
      };
    if (body.length > 0 && contentType === undefined)
      return { refusal: badHeader("Content-Type", "is required with a body") };
    if (contentType !== undefined && !PRINTABLE.test(contentType)) return badType();
    const producer = readProducer(headers);
    if ("refusal" in producer) return producer;
    const order = headers["stream-seq"];
    if (order !== undefined && order.length > MAX_NAME_LENGTH)
      return {
        refusal: badHeader("Stream-Seq", `must have at most ${MAX_NAME_LENGTH} characters`),
      };
    const records = recordsOf(body, contentType ?? DEFAULT_TYPE);
    if (records === undefined || (records.length === 0 && body.length > 0))
      return (await otherRefusal(stream, contentType)) ?? notJson();
    const problem =
      stream.sent === undefined ? undefined : problemIn(records, contentType ?? DEFAULT_TYPE);
    if (problem !== undefined)
      return (await otherRefusal(stream, contentType)) ?? { refusal: problem };
    return {
      value: {
        ...{ records, order, producer: producer.value },
        contentType: records.length === 0 ? undefined : contentType,
        close: closes ? "closed" : undefined,
      },
    };
  }

  /**
   * Returns the refusal that takes precedence over the error for an invalid body. Returns
   * `undefined` if there is no such refusal.
   */
  async function otherRefusal(
    { name }: AdmittedStream,
    contentType: string | undefined,
  ): Promise<{ readonly refusal: HttpReply } | undefined> {
    const head = await logs.logHead(name);
    if (head === "missing") return { refusal: errorReply("stream_unknown") };
    if (head === "deleted") return { refusal: edgeReply("stream_deleted") };
    if (head.closed !== undefined) return { refusal: endedReply(head.tail) };
    if (contentType !== undefined && !isSameMediaType(contentType, head.contentType))
      return { refusal: edgeReply("stream_type") };
    return undefined;
  }

  async function remove(request: HttpRequest): Promise<HttpReply> {
    const { name } = admission.streamOf(request);
    switch (await logs.deleteLog(name)) {
      case "done":
        return streamReply(204, {});
      case "missing":
        return errorReply("stream_unknown");
      case "deleted":
        return edgeReply("stream_deleted");
    }
  }

  return { create, append, remove };
}

/** PUT headers that are not allowed for a channel's stream, with their usual spelling. */
const NOT_IN_CHANNELS: Readonly<Record<string, string>> = {
  "stream-ttl": "Stream-TTL",
  "stream-expires-at": "Stream-Expires-At",
  "stream-forked-from": "Stream-Forked-From",
  "stream-fork-offset": "Stream-Fork-Offset",
  "stream-fork-sub-offset": "Stream-Fork-Sub-Offset",
};

/** Returns an error reply if a channel's stream cannot contain one of the records. */
function problemIn(records: readonly Uint8Array[], contentType: string): HttpReply | undefined {
  const isJson = isJsonLog(contentType);
  for (const record of records) {
    const message = recordProblem(record, isJson);
    if (message !== undefined) return errorReply("bad_request", { message });
  }
  return undefined;
}

function creationReply(creation: LogCreation, location: string): HttpReply {
  switch (creation.verdict) {
    case "created":
    case "exists": {
      const { tail, contentType, closed } = creation.head;
      return streamReply(creation.verdict === "created" ? 201 : 200, {
        ...offsetHeaders(tail, closed !== undefined),
        "content-type": contentType,
        location,
      });
    }
    case "conflict":
      return edgeReply("stream_exists");
    case "deleted":
      return edgeReply(
        "stream_exists",
        {},
        "The path belongs to a deleted stream that still has forks. Use a different path, or delete the forks",
      );
    case "source_missing":
      return sourceUnknown();
    case "source_deleted":
      return edgeReply(
        "stream_exists",
        {},
        "The source of the fork was deleted or has expired. Fork a different stream",
      );
    case "source_type":
      return edgeReply(
        "stream_type",
        {},
        "The Content-Type differs from the content type of the fork's source. Send the source's type",
      );
    case "bad_offset":
      return badHeader("Stream-Fork-Offset", "is not an offset of the fork's source");
    case "bad_sub_offset":
      return badHeader(
        "Stream-Fork-Sub-Offset",
        "exceeds the length of the append that begins at Stream-Fork-Offset",
      );
    case "full":
      return fullReply(creation.limit);
  }
}

/** Returns the reply for a source that does not exist, or that the caller may not read. */
function sourceUnknown(): HttpReply {
  return errorReply("stream_unknown", { message: "The source of the fork does not exist" });
}

function appendReply(result: LogAppendResult, append: LogAppend): HttpReply {
  switch (result.verdict) {
    case "appended":
    case "repeated": {
      const { producer, tail, closed } = result;
      const isNew = result.verdict === "appended" && append.records.length > 0;
      return streamReply(producer !== undefined && isNew ? 200 : 204, {
        ...offsetHeaders(tail, closed !== undefined),
        ...(producer && {
          "producer-epoch": String(producer.epoch),
          "producer-seq": String(producer.number),
        }),
      });
    }
    case "missing":
      return errorReply("stream_unknown");
    case "deleted":
      return edgeReply("stream_deleted");
    case "closed":
      return endedReply(result.tail);
    case "other_type":
      return edgeReply("stream_type");
    case "stale_epoch":
      return edgeReply("producer_fenced", { "producer-epoch": String(result.epoch) });
    case "bad_start":
      return badHeader("Producer-Seq", "must be 0 in the first request of an epoch");
    case "gap":
      return gapReply(result.expected, append.producer?.number ?? 0);
    case "out_of_order":
      return edgeReply("stream_seq_conflict");
    case "full":
      return fullReply(result.limit);
  }
}

function endedReply(tail: LogOffset): HttpReply {
  return edgeReply("stream_ended", offsetHeaders(tail, true));
}

function gapReply(expected: number, received: number): HttpReply {
  return edgeReply(
    "producer_gap",
    { "producer-expected-seq": String(expected), "producer-received-seq": String(received) },
    `The next Producer-Seq is ${expected}, but the request has ${received}. Requests from the producer were lost in transit, or the store has lost acknowledged writes (on Redis, see appendfsync)`,
  );
}

function fullReply(limit: LogLimit): HttpReply {
  const what = {
    bytes: "The stream would exceed logs.maxBytes. Continue in a new stream, or raise the limit",
    records:
      "The stream would exceed logs.maxRecords. Continue in a new stream, or raise the limit",
    producers:
      "The stream has reached logs.maxProducers. Reuse the Producer-Id of an existing producer, or raise the limit",
    depth: `The fork's chain of sources would have more than ${MAX_FORK_DEPTH} streams. Fork an earlier source, or copy the data to a new stream`,
    streams: `The channel has reached the maximum of ${MAX_OPEN_STREAMS} active streams. Close one of them first`,
  };
  return edgeReply("log_full", {}, what[limit]);
}

function readExpiry(
  headers: HttpRequest["headers"],
): Parsed<Pick<LogDraft, "ttlS" | "expiresAtMs">> {
  const ttl = headers["stream-ttl"];
  const expiresAt = headers["stream-expires-at"];
  if (ttl !== undefined && expiresAt !== undefined)
    return { refusal: badHeader("Stream-TTL", "must not be sent with Stream-Expires-At") };
  if (ttl !== undefined && !TTL.test(ttl))
    return {
      refusal: badHeader(
        "Stream-TTL",
        "must be a number of seconds from 0 to 9999999999, without leading zeros",
      ),
    };
  const expiresAtMs =
    expiresAt !== undefined && TIME.test(expiresAt) ? Date.parse(expiresAt) : undefined;
  if (expiresAt !== undefined && !Number.isFinite(expiresAtMs))
    return { refusal: badHeader("Stream-Expires-At", "must be an RFC 3339 date and time") };
  return { value: { ttlS: ttl === undefined ? undefined : Number(ttl), expiresAtMs } };
}

function readForkPlace(
  offsetText: string | undefined,
  subOffsetText: string | undefined,
): Parsed<Pick<LogOrigin, "offset" | "subOffset">> {
  const offset = offsetText === undefined ? undefined : parseOffset(offsetText);
  if (offsetText !== undefined && offset === undefined)
    return { refusal: badHeader("Stream-Fork-Offset", "is not an offset") };
  if (subOffsetText !== undefined && !SUB_OFFSET.test(subOffsetText))
    return {
      refusal: badHeader(
        "Stream-Fork-Sub-Offset",
        "must be a non-negative integer without leading zeros",
      ),
    };
  const subOffset = Math.min(Number(subOffsetText ?? 0), Number.MAX_SAFE_INTEGER);
  if (subOffset > 0 && offset === undefined)
    return { refusal: badHeader("Stream-Fork-Sub-Offset", "needs the Stream-Fork-Offset header") };
  return { value: { offset, subOffset } };
}

function readProducer(headers: HttpRequest["headers"]): Parsed<LogProducer | undefined> {
  const id = headers["producer-id"];
  const epoch = headers["producer-epoch"];
  const number = headers["producer-seq"];
  if (id === undefined && epoch === undefined && number === undefined) return { value: undefined };
  if (id === undefined || epoch === undefined || number === undefined)
    return {
      refusal: badHeader("Producer-Id", "must be sent with Producer-Epoch and Producer-Seq"),
    };
  if (id.length > MAX_PRODUCER_LENGTH)
    return {
      refusal: badHeader("Producer-Id", `must have at most ${MAX_PRODUCER_LENGTH} characters`),
    };
  if (!isInteger(epoch)) return { refusal: badHeader("Producer-Epoch", NOT_INTEGER) };
  if (!isInteger(number)) return { refusal: badHeader("Producer-Seq", NOT_INTEGER) };
  return { value: { id, epoch: Number(epoch), number: Number(number) } };
}

const NOT_INTEGER = `must be an integer from 0 to ${Number.MAX_SAFE_INTEGER}`;

function isInteger(text: string): boolean {
  return INTEGER.test(text) && Number(text) <= Number.MAX_SAFE_INTEGER;
}

function isTrue(value: string | undefined): boolean {
  return value?.toLowerCase() === "true";
}

function badType(): { readonly refusal: HttpReply } {
  return {
    refusal: badHeader(
      "Content-Type",
      `must consist of 1 to ${MAX_NAME_LENGTH} printable ASCII characters`,
    ),
  };
}

function notJson(): { readonly refusal: HttpReply } {
  return {
    refusal: errorReply("bad_request", {
      message: "The body must be JSON, and an append must contain at least one value",
    }),
  };
}
