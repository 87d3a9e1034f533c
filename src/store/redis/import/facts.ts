// What a moved row comes to in Redis (layout: `parts.ts`, of a stream `lua/snapshot.lua`): facts about single keys, which a move writes and looks for when
// it is verified. What is past its time comes to no fact. A channel's publications begin at its newest seq, as if each message had been one. Pure.

import {
  type ChannelKey,
  clientMsgNoOf,
  expiresAtMs,
  GROUP_CHANNEL,
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  streamPayload,
} from "../../../broker/model.ts";
import { bucketOf, type Keys, usersOf } from "../../../redis/keys.ts";
import type { Arg } from "../../../redis/script.ts";
import { encodeRecord, STREAM_STATES } from "../../../redis/wire.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type {
  Moved,
  MovedCopy,
  MovedFirst,
  MovedHead,
  MovedMessage,
  MovedStream,
} from "../../moved.ts";
import { dedupeKey, otherUser } from "../steps/channel-names.ts";
import { encodeInfo, ownField, recordKey } from "../steps/channel-record.ts";
import {
  accessTokenKey,
  encodePassword,
  encodeToken,
  passwordsKey,
} from "../steps/managers.ts";
import { encodeNote, eventHead } from "../steps/stream-record.ts";
import { encodeDevice } from "../steps/users.ts";

const NO_TEXT = streamPayload("");
/** In the index of a user's groups: long ago. */
const ENTERED = "0";

export interface ImportContext {
  readonly keys: Keys;
  readonly nowMs: number;
  /** When the move began, Unix milliseconds: active streams count as heard of then. */
  readonly beganAtMs: number;
  readonly dedupeWindowMs: number;
  /** 0 = for ever. */
  readonly retentionMs: number;
}

/** Names, members, scores, values. */
type Items = Arg[];

/** Of a value that ends by itself: how much longer than the rule it is kept, for clocks differ. */
const SPACE_MS = 60_000;

interface StreamEntry {
  readonly seq: number;
  /** What stands behind the seq in the entry's place. */
  readonly id: number;
  /** Names and values in turn. */
  readonly fields: readonly Arg[];
}

export type Fact =
  /** Fields and values in turn. */
  | { readonly kind: "hash"; readonly key: string; readonly items: Arg[] }
  | {
      readonly kind: "set";
      readonly key: string;
      readonly items: Arg[];
      /** Milliseconds until it may be forgotten; 0: never. */
      readonly keepMs: number;
    }
  /** Scores and members in turn. */
  | {
      readonly kind: "scores";
      readonly key: string;
      readonly items: Arg[];
      /** Which of two scores of a member stays; NX: the first. */
      readonly stays: "GT" | "LT" | "NX";
      /** Not looked for: others may have changed it. */
      readonly mayChange?: boolean;
    }
  | {
      readonly kind: "value";
      readonly key: string;
      readonly value: Arg;
      readonly keepMs: number;
    }
  /** A value that begins with Unix milliseconds, of which the newest stays. */
  | {
      readonly kind: "newest";
      readonly key: string;
      readonly value: string;
      readonly keepMs: number;
    }
  | { readonly kind: "list"; readonly key: string; readonly items: Arg[] }
  | {
      readonly kind: "entries";
      readonly key: string;
      /** Of the entry before the first one; 0: it need not be there. */
      readonly afterSeq: number;
      readonly entries: StreamEntry[];
      /** 0: for ever. */
      readonly keepMs: number;
    };

/** Where an entry stands in its stream. */
export const placeOf = ({ seq, id }: StreamEntry): string => `${seq}-${id}`;

/** What rows come to, each key once: it is written and looked for in one go. The order of what comes to a key stays. */
export function factsOf(
  context: ImportContext,
  rows: readonly Moved[],
): readonly Fact[] {
  const found = new Map<string, Fact>();
  for (const fact of rows.flatMap((moved) => factsOfRow(context, moved))) {
    const name = `${fact.kind}${fact.kind === "scores" ? fact.stays : ""} ${fact.key}`;
    const before = found.get(name);
    found.set(name, before === undefined ? fact : bothOf(before, fact));
  }
  return [...found.values()];
}

/** Of values the later one. */
function bothOf(first: Fact, next: Fact): Fact {
  if (first.kind === "entries" && next.kind === "entries") {
    first.entries.push(...next.entries);
    return { ...first, keepMs: Math.max(first.keepMs, next.keepMs) };
  }
  if (next.kind === "newest" && first.kind === "newest")
    return timeOf(first.value) > timeOf(next.value) ? first : next;
  if (first.kind === "list" || !("items" in first) || !("items" in next))
    return next;
  first.items.push(...next.items);
  return first;
}

/** Unix milliseconds at which a `newest` value begins. */
export function timeOf(value: string): number {
  return Number.parseInt(value, 10);
}

function factsOfRow(context: ImportContext, moved: Moved): readonly Fact[] {
  const { keys } = context;
  switch (moved.kind) {
    case "device": {
      const { device } = moved;
      const key = keys.user("devices", device.uid);
      return [hash(key, device.flag, encodeDevice(device))];
    }
    case "password": {
      const value = encodePassword(moved.passwordHash);
      return [hash(passwordsKey(keys), moved.username, value)];
    }
    case "token":
      return tokenFacts(context, moved);
    case "channel": {
      const key = keys.channel("head", recordKey(moved.info));
      return [hash(key, "info", encodeInfo(moved.info))];
    }
    case "member": {
      const { channel, uid } = moved;
      const kinds = (["permanent", "temporary"] as const).filter(
        (kind) => moved[kind],
      );
      return kinds.map((kind) =>
        set(keys.channel(kind, recordKey(channel)), [uid]),
      );
    }
    case "group": {
      const { uid, channelId: id, joinSeq } = moved;
      const name = recordKey({ type: GROUP_CHANNEL, id });
      return [
        hash(keys.channel("joinSeqs", name), uid, `${joinSeq}`),
        hash(keys.user("groups", uid), id, ENTERED),
      ];
    }
    case "message":
      return messageFacts(context, moved);
    case "stream":
      return streamFacts(context, moved);
    case "own": {
      const key = keys.channel("head", moved.key);
      return [hash(key, ownField(moved.uid), `${moved.seq}`)];
    }
    case "first":
      return firstFacts(context, moved);
    case "head":
      return headFacts(context, moved);
    case "position": {
      const { readSeq, deletedSeq, headAtChange, changedAtMs } = moved;
      const value = `${readSeq} ${deletedSeq} ${headAtChange} ${changedAtMs}`;
      return [hash(keys.channel("positions", moved.key), moved.uid, value)];
    }
    case "inbox":
      return [value(keys.user("inboxSeq", moved.uid), `${moved.lastSeq}`)];
    case "copy":
      return copyFacts(context, moved);
  }
}

function hash(key: string, ...items: Items): Fact {
  return { kind: "hash", key, items };
}

function set(key: string, items: Items, keepMs = 0): Fact {
  return { kind: "set", key, items, keepMs };
}

function scores(key: string, items: Items): Fact {
  return { kind: "scores", key, items, stays: "GT" };
}

function value(key: string, text: Arg, keepMs = 0): Fact {
  return { kind: "value", key, value: text, keepMs };
}

/** When the sweep is to look at the channel. */
function due(
  { keys }: Pick<ImportContext, "keys">,
  channel: ChannelKey,
  [at, stays]: readonly [number | "+inf", "LT" | "NX"],
): Fact {
  const key = keys.bucket("due", bucketOf(channel));
  return { kind: "scores", key, items: [at, channel], stays, mayChange: true };
}

function tokenFacts(
  { keys, nowMs }: ImportContext,
  { hash: name, owner, expiresAtMs }: Extract<Moved, { kind: "token" }>,
): readonly Fact[] {
  if (expiresAtMs <= nowMs) return [];
  const keepMs = Math.ceil(expiresAtMs - nowMs) + SPACE_MS;
  const token = encodeToken(owner, expiresAtMs);
  return [value(accessTokenKey(keys, name), token, keepMs)];
}

function messageFacts(
  { keys }: ImportContext,
  { message, previousSeq, counted, isStream }: MovedMessage,
): readonly Fact[] {
  const { key, messageSeq: seq, clientMsgNo, header } = message;
  const payload = isStream ? NO_TEXT : message.payload;
  const record = recordOf({ ...message, payload });
  const { messageId } = message;
  const fields: Items = counted === seq ? [] : ["c", `${counted}`];
  fields.push("r", record);
  if (isStream) fields.push("s", clientMsgNo);
  const endMs = expiresAtMs(message);
  const facts: Fact[] = [];
  if (Number.isFinite(endMs)) {
    fields.push("x", `${endMs}`);
    const expiry = keys.channel("expiry", key);
    const redDots = keys.channel("redDots", key);
    facts.push(scores(expiry, [endMs, `${seq}-${messageId}`]));
    if (header.redDot) facts.push(scores(redDots, [seq, `${seq}:${endMs}`]));
    facts.push(due({ keys }, key, [endMs, "LT"]));
  }
  facts.push({
    ...{ kind: "entries", key: keys.channel("log", key), keepMs: 0 },
    ...{ afterSeq: previousSeq, entries: [{ seq, id: messageId, fields }] },
  });
  return facts;
}

/** Without a clientMsgNo that the message's id says. */
function recordOf(message: Message): Buffer {
  const { clientMsgNo: no, messageId, timestampMs } = message;
  const clientMsgNo = no === clientMsgNoOf(messageId) ? "" : no;
  return encodeRecord({ ...message, clientMsgNo }, timestampMs);
}

function headFacts(
  { keys, retentionMs }: ImportContext,
  { key, seq, counted, newestAtMs, oldestAtMs }: MovedHead,
): readonly Fact[] {
  if (seq === 0) return [];
  const items: Items = ["seq", `${seq}`, "pub", `${seq}`, "red", `${counted}`];
  const head = keys.channel("head", key);
  if (newestAtMs === undefined || oldestAtMs === undefined)
    return [hash(head, ...items, "bare", "1")];
  const users = usersOf(key);
  return [
    hash(head, ...items),
    retentionMs > 0
      ? due({ keys }, key, [oldestAtMs + retentionMs, "LT"])
      : due({ keys }, key, ["+inf", "NX"]),
    ...users.map((uid) =>
      scores(keys.user("peers", uid), [newestAtMs, otherUser(users, uid)]),
    ),
  ];
}

function firstFacts(
  { keys, nowMs, dedupeWindowMs }: ImportContext,
  first: MovedFirst,
): readonly Fact[] {
  const { messageId, messageSeq, timestampMs } = first;
  const leftMs = timestampMs + dedupeWindowMs - nowMs;
  if (leftMs <= 0) return [];
  return [
    {
      ...{ kind: "newest", key: dedupeKey(keys, first) },
      value: `${timestampMs} ${messageSeq}-${messageId}`,
      keepMs: Math.ceil(leftMs) + SPACE_MS,
    },
  ];
}

function copyFacts(
  { keys, nowMs }: ImportContext,
  { uid, inboxSeq: seq, message, endMs }: MovedCopy,
): readonly Fact[] {
  if (endMs <= nowMs) return [];
  const { messageId, payload } = message;
  const endsEarly = endMs === expiresAtMs(message);
  const keepMs = Math.ceil(endMs - nowMs) + SPACE_MS;
  const fields: Items = [
    ...["x", `${endMs}`, "i", `${messageId}`, "n", `${payload.length}`],
    ...["r", recordOf(message)],
  ];
  const copies: Fact = {
    ...{ kind: "entries", key: keys.user("inbox", uid), keepMs },
    ...{ afterSeq: 0, entries: [{ seq, id: 0, fields }] },
  };
  if (!endsEarly) return [copies];
  return [copies, scores(keys.user("inboxExpiry", uid), [endMs, `${seq}`])];
}

function streamFacts(
  context: ImportContext,
  stream: MovedStream,
): readonly Fact[] {
  const { keys } = context;
  const { snapshot, offsets } = stream;
  const { key, clientMsgNo: no, text, notes } = snapshot;
  const of = (part: string) => keys.channel(part, key, no);
  const facts: Fact[] = [
    hash(of("stream"), ...streamState(context, stream)),
    value(of("streamOffsets"), packed(offsets)),
    ...idFacts(context, of("streamEventIds"), stream),
  ];
  if (text !== "") facts.push(value(of("streamText"), text));
  const items = notes.map(encodeNote);
  if (items.length > 0)
    facts.push({ kind: "list", key: of("streamNotes"), items });
  if (snapshot.state !== "active") return facts;
  return [...facts, ...activeFacts(context, stream)];
}

function streamState(
  { beganAtMs }: ImportContext,
  { snapshot, stopped, startedAtMs }: MovedStream,
): Items {
  const { messageId, messageSeq, nextIndex, text, state } = snapshot;
  const lastMs = state === "active" ? beganAtMs : startedAtMs;
  const items: Items = [
    ...["h", eventHead(snapshot), "i", `${messageId}`, "q", `${messageSeq}`],
    ...["t", `${startedAtMs}`, "n", `${nextIndex}`, "l", `${text.length}`],
    ...["b", `${bytesOf(snapshot)}`, "a", `${lastMs}`],
    ...["e", `${STREAM_STATES.indexOf(state)}`, "sd", snapshot.startData],
  ];
  if (stopped) items.push("w", "1");
  if (snapshot.endData !== undefined) items.push("ed", snapshot.endData);
  return items;
}

/** What its events count against its bound, about: pieces of text count together. */
function bytesOf({
  text,
  startData,
  endData,
  notes,
}: MovedStream["snapshot"]): number {
  const plain = (type: string, data: string) => snapshotBytes({ type, data });
  let bytes = plain(STREAM_START, startData) + plain(STREAM_CONTENT, text);
  for (const note of notes) bytes += snapshotBytes(note);
  return endData === undefined ? bytes : bytes + plain(STREAM_END, endData);
}

/** Retries of events of an ended stream are known for as long as those of messages. */
function idFacts(
  { nowMs, dedupeWindowMs }: ImportContext,
  key: string,
  { snapshot, eventIds, startedAtMs }: MovedStream,
): readonly Fact[] {
  const items = [...eventIds];
  if (items.length === 0) return [];
  if (snapshot.state === "active") return [set(key, items)];
  if (startedAtMs + dedupeWindowMs <= nowMs) return [];
  return [set(key, items, dedupeWindowMs + SPACE_MS)];
}

function activeFacts(
  { keys, beganAtMs }: ImportContext,
  { snapshot }: MovedStream,
): readonly Fact[] {
  const { key, clientMsgNo: no } = snapshot;
  const streams = keys.bucket("activeStreams", bucketOf(key));
  return [
    value(keys.channel("activeStream", key), no),
    scores(streams, [beganAtMs, `${key}\n${no}`]),
    ...usersOf(key).map((uid) => set(keys.user("streams", uid), [key])),
  ];
}

function packed(offsets: readonly number[]): Buffer {
  const bytes = Buffer.alloc(4 * offsets.length);
  for (const [at, offset] of offsets.entries())
    bytes.writeUInt32BE(offset, 4 * at);
  return bytes;
}
