// Builds the facts for messages, streams, channel heads, dedupe records and commands.
// `store/redis/ports.ts` describes the key layout, and `store/redis/library/logs.lua` the layout of
// a stream's log. Keeps no state.

import { bucketOf, framesIn, recordCount } from "../broker/log-frame.ts";
import {
  type ChannelKey,
  clientMsgNoOf,
  expiresAtMs,
  type Message,
  type MessageHead,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  streamPayload,
} from "../broker/model.ts";
import { cutIndexOf, shownBytes } from "../broker/stream-fold.ts";
import { usersOf } from "../redis/keys.ts";
import type { Arg } from "../redis/script.ts";
import { encodeRecord, encodeStreamHead } from "../redis/wire.ts";
import type { FirstRow, SourceMessage, SourceStream } from "../store/embedded/export.ts";
import { snapshotBytes } from "../store/held-bytes.ts";
import { dedupeKey, otherUser } from "../store/redis/steps/channel-names.ts";
import { INBOX_KEPT_MS, inboxDueKey } from "../store/redis/steps/command-steps.ts";
import { encodeLengths, encodeMessage, encodeView } from "../store/redis/steps/stream-record.ts";
import { type Fact, fact, type MoveContext, SPACE_MS } from "./facts.ts";
import { producerFacts, stateItems } from "./log-facts.ts";

const NO_TEXT = streamPayload("");
const SEQ_DIGITS = 15;
/** Maximum size of fields `h` and `h2` of a log's head, in bytes (see `library/logs.lua`). */
const MAX_SMALL_VALUE = 64;
/** Age above which a stream's end is not migrated, in milliseconds. */
const MAX_AWAY_MS = 7 * 86_400_000;

function sweepFact(
  { link: { keys } }: MoveContext,
  channel: ChannelKey,
  atMs: number | "+inf",
): Fact {
  return fact("LT", keys.bucket("due", bucketOf(channel)), [atMs, channel]);
}

function entryFact(
  isFirst: boolean,
  key: string,
  [id, fields, keepMs = 0]: readonly [string, readonly Arg[], number?],
): Fact {
  return fact(isFirst ? "XNEW" : "XADD", key, [id, fields.length, ...fields], keepMs);
}

/** Returns the facts of a message. `isFirst` is true for the oldest message of its channel. */
export function messageFacts(
  context: MoveContext,
  row: SourceMessage & { readonly isFirst: boolean },
): readonly Fact[] {
  const { message, isStream, isFirst, counted } = row;
  const { key, messageSeq: seq, messageId, clientMsgNo } = message;
  const { keys } = context.link;
  const payload = isStream && message.payload.length === 0 ? NO_TEXT : message.payload;
  const fields: Arg[] = counted === seq ? [] : ["c", `${counted}`];
  fields.push("r", recordOf({ ...message, payload }));
  if (isStream) fields.push("s", clientMsgNo);
  const facts: Fact[] = [];
  const endMs = expiresAtMs(message);
  const id = `${seq}-${messageId}`;
  if (Number.isFinite(endMs)) {
    fields.push("x", `${endMs}`);
    facts.push(fact("ZADD", keys.channel("expiry", key), [endMs, id]));
    facts.push(sweepFact(context, key, endMs));
    const redDots = keys.channel("redDots", key);
    if (message.header.redDot) facts.push(fact("ZADD", redDots, [seq, `${seq}:${endMs}`]));
  }
  const { sourceId } = message;
  if (sourceId !== undefined) {
    fields.push("t", `${message.timestampMs}`);
    facts.push(fact("ZADD", keys.channel("labels", key), [seq, sourceId]));
  }
  return [...facts, entryFact(isFirst, keys.channel("log", key), [id, fields])];
}

/** Encodes a message. A clientMsgNo that is derived from the message id is omitted. */
function recordOf(message: Message): Buffer {
  const { clientMsgNo: no, messageId, timestampMs } = message;
  const clientMsgNo = no === clientMsgNoOf(messageId) ? "" : no;
  return encodeRecord({ ...message, clientMsgNo }, timestampMs);
}

/**
 * Returns the facts of a channel's head. `head` is 0 if the channel never stored a message. `edges`
 * is `undefined` if the channel currently stores no message.
 */
export function headFacts(
  context: MoveContext,
  row: {
    readonly key: ChannelKey;
    readonly head: number;
    readonly counted: number;
    readonly edges: readonly [oldestAtMs: number, newest: MessageHead] | undefined;
  },
): readonly Fact[] {
  const { key, head: seq, counted, edges } = row;
  if (seq === 0) return [];
  const { link, retentionMs } = context;
  const head = link.keys.channel("head", key);
  const items = ["seq", `${seq}`, "pub", `${seq}`, "red", `${counted}`];
  if (edges === undefined) return [fact("HSET", head, [...items, "bare", "1"])];
  const [oldestAtMs, { messageId, messageSeq }] = edges;
  const users = usersOf(key);
  return [
    fact("HSET", head, [...items, "last", `${messageSeq}-${messageId}`]),
    sweepFact(context, key, retentionMs > 0 ? oldestAtMs + retentionMs : "+inf"),
    ...users.map((uid) => {
      const peer = otherUser(users, uid);
      return fact("ZADD", link.keys.user("peers", uid), [messageTimeMs(messageId), peer]);
    }),
  ];
}

/** Returns the facts of a channel's newest imported message. */
export function importedFacts(
  head: string,
  { seq, timestampMs }: { readonly seq: number; readonly timestampMs: number },
): readonly Fact[] {
  if (seq === 0) return [];
  return [fact("HSET", head, ["imported", `${seq}`, "importedAt", `${timestampMs}`])];
}

export function firstFacts(
  { link: { keys }, clock, dedupeWindowMs }: MoveContext,
  first: FirstRow | undefined,
): readonly Fact[] {
  if (first === undefined) return [];
  const { messageId, messageSeq, timestampMs, payloadHash } = first;
  const leftMs = timestampMs + dedupeWindowMs - clock();
  if (leftMs <= 0) return [];
  const place = `${timestampMs} ${messageSeq}-${messageId}`;
  const value = payloadHash ? Buffer.concat([Buffer.from(`${place}#`), payloadHash]) : place;
  return [fact("SET", dedupeKey(keys, first), [value], leftMs + SPACE_MS)];
}

export function copyFacts(
  { link: { keys }, clock }: MoveContext,
  copy: {
    readonly uid: string;
    readonly seq: number;
    readonly message: Message;
    readonly endMs: number;
    readonly isFirst: boolean;
    /** User who sent the copy, or "" if a backend sent it. */
    readonly sender: string;
    /** True if the inbox contains copies that users sent. */
    readonly isListed: boolean;
    /**
     * True if the event feed is on. An expired copy is then migrated, because its
     * `command.expired` event may not have been written yet.
     */
    readonly hasFeed: boolean;
  },
): readonly Fact[] {
  const { uid, seq, message, endMs, isFirst, sender, isListed, hasFeed } = copy;
  const inbox = keys.user("inbox", uid);
  const leftMs = endMs - clock();
  if (leftMs <= 0 && !hasFeed) return isFirst ? [fact("XNEW", inbox, [])] : [];
  const { messageId, payload } = message;
  const fields = [
    ...["x", `${endMs}`, "i", `${messageId}`, "n", `${payload.length}`],
    ...["r", recordOf(message)],
  ];
  const keepMs = Math.max(0, leftMs) + SPACE_MS + (hasFeed ? INBOX_KEPT_MS : 0);
  const facts = [entryFact(isFirst, inbox, [`${seq}-0`, fields, keepMs])];
  if (sender !== "")
    facts.push(fact("HSET", keys.user("inboxSenders", uid), [`${seq}`, sender], keepMs));
  if (isListed) {
    const member = `${Buffer.byteLength(sender)}:${sender}:${`${seq}`.padStart(SEQ_DIGITS, "0")}`;
    facts.push(fact("ZADD", keys.user("inboxOrder", uid), ["0", member], keepMs));
  }
  if (endMs === expiresAtMs(message))
    facts.push(fact("ZADD", keys.user("inboxExpiry", uid), [endMs, `${seq}`]));
  if (hasFeed) facts.push(fact("LT", inboxDueKey(keys, uid), [endMs, uid]));
  return facts;
}

export function streamFacts(
  context: MoveContext,
  message: Message,
  stream: SourceStream,
): readonly Fact[] {
  const { link, beganAtMs, clock, dedupeWindowMs } = context;
  const { timestampMs: startedAtMs } = message;
  const { snapshot, log, eventMarks, viewLimits } = stream;
  const { key, clientMsgNo: no, messageSeq } = snapshot;
  const { keys } = link;
  const isActive = snapshot.state === "active";
  const lastMs = isActive ? beganAtMs : startedAtMs;
  const facts = [
    fact("HSET", keys.channel("logHead", key, no), headItems(stream, lastMs, expiresAtMs(message))),
    fact("SET", keys.channel("logFrames", key, no), [log.frames]),
    ...producerFacts(keys.channel("logProducers", key, no), log.producers),
  ];
  // The event ids of an ended stream are kept for the dedupe window, like the dedupe records of
  // messages.
  const areKept = isActive || startedAtMs + dedupeWindowMs > clock();
  const keepMs = isActive ? 0 : dedupeWindowMs + SPACE_MS;
  const ids = keys.channel("logEventIds", key, no);
  if (eventMarks.size > 0 && areKept) facts.push(fact("HSET", ids, [...eventMarks].flat(), keepMs));
  if (!isActive) return [...facts, ...endFacts(context, stream)];
  const streams = keys.bucket("activeStreams", bucketOf(key));
  return [
    ...facts,
    fact("ZADD", keys.channel("openStreams", key), [viewLimits ? messageSeq : 0, no]),
    fact("ZADD", streams, [beganAtMs, `${key}\n${no}`]),
    ...usersOf(key).map((uid) => fact("SADD", keys.user("streams", uid), [key])),
  ];
}

/** Returns the facts of a stream's end, or no facts if the end is older than `MAX_AWAY_MS`. */
function endFacts(
  { link: { keys }, clock }: MoveContext,
  { snapshot, endedMs }: SourceStream,
): readonly Fact[] {
  const { key, clientMsgNo, messageSeq } = snapshot;
  if (endedMs === undefined || endedMs + MAX_AWAY_MS < clock()) return [];
  const users = usersOf(key);
  if (users.length === 0) {
    const ends = keys.channel("endedStreams", key);
    return [fact("ZADD", ends, [endedMs, `${messageSeq}:${clientMsgNo}`])];
  }
  const member = `${messageSeq}:${key}\n${clientMsgNo}`;
  return users.map((uid) => fact("ZADD", keys.user("endedStreams", uid), [endedMs, member]));
}

function headItems(stream: SourceStream, lastMs: number, expiryMs: number): readonly Arg[] {
  const { snapshot, log } = stream;
  const lengths = { textUnits: snapshot.text.length, bytes: countedBytes(stream), lastMs };
  return [
    ...stateItems(log.state),
    ...eventHeadItems(encodeStreamHead(snapshot)),
    ...["m", encodeMessage(snapshot), "l", encodeLengths(lengths)],
    ...viewItems(stream),
    ...(Number.isFinite(expiryMs) ? ["e", `${expiryMs}`] : []),
  ];
}

/** Returns the fields `h`, `h2` and `h3` of a log's head (see `library/logs.lua`). */
function eventHeadItems(streamHead: Buffer): readonly Arg[] {
  const pieces = [
    ["h", streamHead.subarray(0, MAX_SMALL_VALUE)],
    ["h2", streamHead.subarray(MAX_SMALL_VALUE, 2 * MAX_SMALL_VALUE)],
    ["h3", streamHead.subarray(2 * MAX_SMALL_VALUE)],
  ] as const;
  return pieces.flatMap(([name, piece]) => (piece.length === 0 ? [] : [name, piece]));
}

/**
 * Returns the `v` field of a log's head (see `library/logs.lua`), or no field if the stream has no
 * view limits.
 */
function viewItems({ snapshot, log, viewLimits }: SourceStream): readonly Arg[] {
  if (viewLimits === undefined) return [];
  const cutIndex = cutIndexOf(snapshot);
  let position = 0;
  let cutAt = 0;
  let endAt = 0;
  for (const frame of framesIn(log.frames)) {
    endAt = position;
    position += frame.bytes.length;
    const next = frame.first + recordCount(frame);
    if (cutIndex !== undefined && frame.first <= cutIndex && cutIndex < next) cutAt = position;
  }
  if (snapshot.state === "active") endAt = 0;
  return ["v", encodeView({ cutIndex, cutAt, endAt, maxDataBytes: viewLimits.maxDataBytes })];
}

function countedBytes({ snapshot, viewLimits }: SourceStream): number {
  const { text, startData, endData, notes } = snapshot;
  if (viewLimits !== undefined)
    return notes.reduce(
      (sum, { type, data }) => sum + shownBytes(type, data),
      shownBytes(STREAM_CONTENT, text),
    );
  const plain = (type: string, data: string) => snapshotBytes({ type, data });
  let bytes = plain(STREAM_START, startData) + plain(STREAM_CONTENT, text);
  for (const note of notes) bytes += snapshotBytes(note);
  return endData === undefined ? bytes : bytes + plain(STREAM_END, endData);
}
