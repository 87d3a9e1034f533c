// Publishing to the users of a personal channel on a Redis Cluster, where they are in other slots
// than the channel: a script for each user, behind the one that stored what is published. No state.

import type { ChannelKey } from "../../../broker/model.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { usersOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { loadScript } from "../../../redis/script.ts";
import { decodeRecord, encodeExtra, messagePublication } from "../../../redis/wire.ts";
import { lua } from "../ports.ts";
import type { Placement } from "./append-call.ts";
import { otherUser } from "./channel-names.ts";

const TO_USER = loadScript(lua("to_user"));

/**
 * Publishes a frame to both users of a personal channel and, for a kept message accepted at
 * `keptAtMs`, enters each in the other's `peers`. To be awaited before the caller is answered. It
 * goes out however much waits for an answer: the message is stored already. Harmless to repeat.
 * Throws as the link does; then one of them may have missed it.
 */
export async function publishToUsers(
  link: RedisLink,
  key: ChannelKey,
  frame: Buffer,
  keptAtMs: number | undefined,
): Promise<void> {
  const users = usersOf(key);
  const published = users.map((uid) => {
    const topic = link.keys.user("topic", uid);
    const args = [topic, frame, otherUser(users, uid), keptAtMs ?? ""];
    const how = { isVital: true };
    return link.run(TO_USER, [link.keys.user("peers", uid)], args, how);
  });
  for (const result of await Promise.allSettled(published))
    if (result.status === "rejected") throw result.reason;
}

/**
 * Publishes a message of the log once more, as the session `origin` sends it again. Does nothing
 * where the log has it no longer.
 */
export async function publishAgain(
  link: RedisLink,
  { key, origin }: Pick<MessageDraft, "key" | "origin">,
  place: Pick<Placement, "messageId" | "messageSeq" | "publicationSeq">,
): Promise<void> {
  const log = link.keys.channel("log", key);
  const at = `${place.messageSeq}-${place.messageId}`;
  const entries = await link.call("xrange", log, at, at);
  const [entry] = entries as readonly (readonly [Buffer, readonly Buffer[]])[]; // as Redis replies
  const fields = entry?.[1] ?? [];
  const isName = (name: string) => (one: Buffer, index: number) =>
    index % 2 === 0 && String(one) === name;
  const recordAt = fields.findIndex(isName("r"));
  const record = recordAt < 0 ? undefined : fields[recordAt + 1];
  if (record === undefined || fields.some(isName("s"))) return; // scripts on streams publish it themselves
  const extra = encodeExtra({ origin, recipients: undefined, idBefore: 0 });
  const { timestampMs } = decodeRecord(record, place);
  const frame = messagePublication({ ...place, record, extra });
  await publishToUsers(link, key, frame, timestampMs);
}
