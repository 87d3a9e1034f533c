// A moved stream as facts about keys in Redis (layout: `lua/snapshot.lua`). Pure.

import {
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../../../broker/model.ts";
import { bucketOf, usersOf } from "../../../redis/keys.ts";
import { STREAM_STATES } from "../../../redis/wire.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import type { MovedStream } from "../../moved.ts";
import { encodeNote, eventHead } from "../steps/streams/record.ts";
import {
  type Fact,
  type ImportContext,
  type Items,
  SPACE_MS,
} from "./facts.ts";

export function streamFacts(
  context: ImportContext,
  stream: MovedStream,
): readonly Fact[] {
  const { keys } = context;
  const { snapshot, offsets } = stream;
  const { key, clientMsgNo: no, text, notes } = snapshot;
  const of = (part: string) => keys.channel(part, key, no);
  const facts: Fact[] = [
    { kind: "hash", key: of("s"), items: standing(context, stream) },
    { kind: "value", key: of("so"), value: packed(offsets) },
    ...idFacts(context, of("se"), stream),
  ];
  if (text !== "") facts.push({ kind: "value", key: of("st"), value: text });
  const items = notes.map(encodeNote);
  if (items.length > 0) facts.push({ kind: "list", key: of("sn"), items });
  if (snapshot.state !== "active") return facts;
  return [...facts, ...activeFacts(context, stream)];
}

function standing(
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
  if (snapshot.state === "active") return [{ kind: "set", key, items }];
  if (startedAtMs + dedupeWindowMs <= nowMs) return [];
  const keepMs = dedupeWindowMs + SPACE_MS;
  return [{ kind: "set", key, items, keepMs }];
}

function activeFacts(
  { keys, beganAtMs }: ImportContext,
  { snapshot }: MovedStream,
): readonly Fact[] {
  const { key, clientMsgNo: no } = snapshot;
  const live = keys.bucket("live", bucketOf(key));
  return [
    { kind: "value", key: keys.channel("act", key), value: no },
    {
      ...{ kind: "scores", key: live, stays: "GT" },
      items: [beganAtMs, `${key}\n${no}`],
    },
    ...usersOf(key).map(
      (uid): Fact => ({
        ...{ kind: "set", key: keys.user("streams", uid), items: [key] },
      }),
    ),
  ];
}

function packed(offsets: readonly number[]): Buffer {
  const bytes = Buffer.alloc(4 * offsets.length);
  for (const [at, offset] of offsets.entries())
    bytes.writeUInt32BE(offset, 4 * at);
  return bytes;
}
