// Where Redis remembers what a retry is answered: `lua/dedupe.lua` says what is kept there. Pure.

import type { ChannelKey } from "../../../broker/model.ts";
import type { Keys } from "../../../redis/keys.ts";

/** Where (key, fromUid, clientMsgNo) is remembered: in the slot of the channel. */
export function dedupeKey(
  keys: Keys,
  {
    key,
    fromUid,
    clientMsgNo,
  }: {
    readonly key: ChannelKey;
    readonly fromUid: string;
    readonly clientMsgNo: string;
  },
): string {
  return keys.channel("dd", key, `${fromUid}\n${clientMsgNo}`);
}
