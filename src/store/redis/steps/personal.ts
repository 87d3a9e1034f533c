// Telling the users of a personal channel on a Redis Cluster, where they are in other slots than the channel: one step per user, behind the step
// that stored what they are told. No state.

import type { ChannelKey } from "../../../broker/model.ts";
import { usersOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { loadScript, type Script } from "../../../redis/script.ts";
import {
  decodeRecord,
  encodeExtra,
  messagePublication,
} from "../../../redis/wire.ts";
import { lua } from "../parts.ts";
import { otherUser } from "./channel-names.ts";

const TO_USER = loadScript(lua("to_user"));

/** What the link must know. */
export const personalScripts: readonly Script[] = [TO_USER];

/**
 * Publishes a frame to both users of a personal channel and, for a kept message accepted at `keptAtMs`, enters each in the other's `peers`. To be
 * awaited before the caller is answered. It goes out however much waits for an answer: the message is stored already. Harmless to repeat. Throws as the link does; then one of them may not have been told.
 */
export async function tellUsers(
  link: RedisLink,
  key: ChannelKey,
  {
    frame,
    keptAtMs,
  }: { readonly frame: Buffer; readonly keptAtMs: number | undefined },
): Promise<void> {
  const users = usersOf(key);
  const tellings = users.map((uid) =>
    link.run(
      TO_USER,
      [link.keys.user("peers", uid)],
      [
        link.keys.user("topic", uid),
        frame,
        otherUser(users, uid),
        keptAtMs ?? "",
      ],
      { isVital: true },
    ),
  );
  for (const result of await Promise.allSettled(tellings))
    if (result.status === "rejected") throw result.reason;
}

/** Tells the users of a plain message that is in the channel's log, `log`, once more. Does nothing where it is no longer there. */
export async function tellAgain(
  link: RedisLink,
  stored: {
    readonly key: ChannelKey;
    readonly log: string;
    readonly place: {
      readonly messageId: number;
      readonly messageSeq: number;
      readonly pub: number;
    };
    /** The session that sends it now. */
    readonly origin?: string | undefined;
  },
): Promise<void> {
  const { key, log, place, origin } = stored;
  const entries = await link.call(
    "xrange",
    log,
    place.messageSeq,
    place.messageSeq,
  );
  const [entry] = entries as readonly (readonly [Buffer, readonly Buffer[]])[]; // as Redis replies
  if (entry === undefined) return;
  const fields = new Map<string, Buffer>();
  for (let i = 0; i + 1 < entry[1].length; i += 2)
    fields.set(String(entry[1][i]), entry[1][i + 1] ?? Buffer.alloc(0));
  const record = fields.get("r");
  if (record === undefined || fields.has("s")) return; // a stream tells of itself
  const extra = encodeExtra({
    ...{ origin, recipients: undefined, startData: undefined },
  });
  const { timestampMs } = decodeRecord(record, place);
  const frame = messagePublication({ ...place, record, extra });
  await tellUsers(link, key, { frame, keptAtMs: timestampMs });
}
