// Publishes to the users of a personal channel on a Redis Cluster, where the users' keys are not in
// the channel's slot. One script per user runs after the channel's script.

import { type ChannelKey, messageTimeMs, userTopic } from "../../../broker/model.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { usersOf } from "../../../redis/keys.ts";
import { loadScript } from "../../../redis/script.ts";
import { encodeExtra, messagePublication } from "../../../redis/wire.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import type { Placement } from "./append-call.ts";
import { otherUser } from "./channel-names.ts";

type PersonalPorts = Pick<RedisStorePorts, "link" | "waitForReplicas">;

const TO_USER = loadScript(lua("to_user"));

/**
 * Publishes a frame to the users of a channel. If `keptAtMs` (the time in the id of a stored
 * message) is defined, also updates `peers`. Ignores the maximum number of calls in flight, because
 * the channel's script has already run.
 */
export async function publishToUsers(
  { link, waitForReplicas }: PersonalPorts,
  key: ChannelKey,
  frame: Buffer,
  keptAtMs: number | undefined,
): Promise<void> {
  const users = usersOf(key);
  const published = users.map(async (uid) => {
    const topic = link.keys.topic(userTopic(uid));
    const peers = link.keys.user("peers", uid);
    const args = [topic, frame, otherUser(users, uid), keptAtMs ?? ""];
    await link.run(TO_USER, [peers], args, { isVital: true });
    if (keptAtMs !== undefined) await waitForReplicas(peers);
  });
  for (const result of await Promise.allSettled(published))
    if (result.status === "rejected") throw result.reason;
}

/** Publishes a stored message again unless it was removed from the log or belongs to a stream. */
export async function publishAgain(
  ports: PersonalPorts,
  { key, origin }: Pick<MessageDraft, "key" | "origin">,
  place: Pick<Placement, "messageId" | "messageSeq" | "publicationSeq">,
): Promise<void> {
  const { link } = ports;
  const log = link.keys.channel("log", key);
  const entryId = `${place.messageSeq}-${place.messageId}`;
  const entries = await link.call("xrange", log, entryId, entryId);
  const [entry] = entries as readonly (readonly [Buffer, readonly Buffer[]])[];
  const fields = entry?.[1] ?? [];
  const isName = (name: string) => (field: Buffer, index: number) =>
    index % 2 === 0 && String(field) === name;
  const recordAt = fields.findIndex(isName("r"));
  const record = recordAt < 0 ? undefined : fields[recordAt + 1];
  // The scripts of a stream publish its message themselves.
  if (record === undefined || fields.some(isName("s"))) return;
  const extra = encodeExtra({ origin, recipients: undefined, idBefore: 0 });
  const frame = messagePublication({ ...place, record, extra });
  await publishToUsers(ports, key, frame, messageTimeMs(place.messageId));
}
