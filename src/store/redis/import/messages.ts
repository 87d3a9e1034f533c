// Moved messages, standings, remembered numbers and copies of commands as facts about keys in Redis (layout: `parts.ts`). A channel's publications
// begin at its newest seq, as if each message had been one. Pure.

import { expiresAtMs, streamPayload } from "../../../broker/model.ts";
import { bucketOf, usersOf } from "../../../redis/keys.ts";
import { encodeRecord } from "../../../redis/wire.ts";
import type {
  MovedCopy,
  MovedFirst,
  MovedHead,
  MovedMessage,
} from "../../moved.ts";
import { otherUser } from "../steps/channel-names.ts";
import { dedupeKey } from "../steps/dedupe.ts";
import { encodeEntryFacts } from "../steps/log-entry.ts";
import {
  type Fact,
  type ImportContext,
  type Items,
  SPACE_MS,
} from "./facts.ts";

const NO_TEXT = streamPayload("");

export function messageFacts(
  { keys }: ImportContext,
  { message, previousSeq, counted, isStream }: MovedMessage,
): readonly Fact[] {
  const { key, messageSeq: seq, clientMsgNo, header } = message;
  const payload = isStream ? NO_TEXT : message.payload;
  const record = encodeRecord({ ...message, payload });
  const { messageId } = message;
  const fields: Items = ["m", encodeEntryFacts(messageId, counted)];
  fields.push("r", record);
  if (isStream) fields.push("s", clientMsgNo);
  const endMs = expiresAtMs(message);
  const facts: Fact[] = [];
  if (Number.isFinite(endMs)) {
    fields.push("x", `${endMs}`);
    const [exp, dot] = [keys.channel("exp", key), keys.channel("dot", key)];
    facts.push(scores(exp, [endMs, `${seq}`]));
    if (header.redDot) facts.push(scores(dot, [seq, `${seq}:${endMs}`]));
    facts.push(due({ keys }, key, [endMs, "LT"]));
  }
  facts.push({
    ...{ kind: "entries", key: keys.channel("log", key), keepMs: 0 },
    ...{ afterSeq: previousSeq, entries: [{ seq, fields }] },
  });
  return facts;
}

export function headFacts(
  { keys, retentionMs }: ImportContext,
  { key, seq, counted, newestAtMs, oldestAtMs }: MovedHead,
): readonly Fact[] {
  if (seq === 0) return [];
  const items: Items = ["seq", `${seq}`, "pub", `${seq}`, "red", `${counted}`];
  const head = keys.channel("head", key);
  if (newestAtMs === undefined || oldestAtMs === undefined)
    return [{ kind: "hash", key: head, items: [...items, "bare", "1"] }];
  const users = usersOf(key);
  return [
    { kind: "hash", key: head, items },
    retentionMs > 0
      ? due({ keys }, key, [oldestAtMs + retentionMs, "LT"])
      : due({ keys }, key, ["+inf", "NX"]),
    ...users.map((uid) =>
      scores(keys.user("peers", uid), [newestAtMs, otherUser(users, uid)]),
    ),
  ];
}

/** When the sweep is to look at the channel. */
function due(
  { keys }: Pick<ImportContext, "keys">,
  channel: string,
  [at, stays]: readonly [number | "+inf", "LT" | "NX"],
): Fact {
  const key = keys.bucket("due", bucketOf(channel));
  return { kind: "scores", key, items: [at, channel], stays, isHint: true };
}

function scores(key: string, items: Items): Fact {
  return { kind: "scores", key, items, stays: "GT" };
}

export function firstFacts(
  { keys, nowMs, dedupeWindowMs }: ImportContext,
  first: MovedFirst,
): readonly Fact[] {
  const { messageId, messageSeq, timestampMs } = first;
  const leftMs = timestampMs + dedupeWindowMs - nowMs;
  if (leftMs <= 0) return [];
  return [
    {
      ...{ kind: "newest", key: dedupeKey(keys, first) },
      value: `${timestampMs} ${messageId} ${messageSeq} ${messageSeq}`,
      keepMs: Math.ceil(leftMs) + SPACE_MS,
    },
  ];
}

export function copyFacts(
  { keys, nowMs }: ImportContext,
  { uid, inboxSeq: seq, message, endMs }: MovedCopy,
): readonly Fact[] {
  if (endMs <= nowMs) return [];
  const { messageId, payload } = message;
  const endsEarly = endMs === expiresAtMs(message);
  const keepMs = Math.ceil(endMs - nowMs) + SPACE_MS;
  const fields: Items = [
    ...["x", `${endMs}`, "i", `${messageId}`, "n", `${payload.length}`],
    ...["r", encodeRecord(message)],
  ];
  const copies: Fact = {
    ...{ kind: "entries", key: keys.user("inbox", uid), keepMs },
    ...{ afterSeq: 0, entries: [{ seq, fields }] },
  };
  if (!endsEarly) return [copies];
  return [copies, scores(keys.user("inboxExpiry", uid), [endMs, `${seq}`])];
}
