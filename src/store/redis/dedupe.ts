// What a retry is answered, as Redis keeps it: the reading half of `lua/dedupe.lua`, which says its format. Pure.

import { BrokerError } from "../../broker/errors.ts";
import type { ChannelKey } from "../../broker/model.ts";
import type { Keys } from "../../redis/keys.ts";

/** The part of a message or command that is remembered. */
export interface Remembered {
  readonly key: ChannelKey;
  readonly fromUid: string;
  readonly clientMsgNo: string;
}

export interface First {
  readonly messageId: number;
  readonly messageSeq: number;
  /** The number of its publication in the channel; 0: a command. */
  readonly pub: number;
  /** What a step keeps beside it; "" mostly. */
  readonly more: string;
}

/** Where (key, fromUid, clientMsgNo) is remembered: in the slot of the channel. */
export function dedupeKey(
  keys: Keys,
  { key, fromUid, clientMsgNo }: Remembered,
): string {
  return keys.channel("dd", key, `${fromUid}\n${clientMsgNo}`);
}

const FORMAT = /^(\d+) (\d+) (\d+) (\d+)(?: (.*))?$/s;

/** The first one, if it is within the window. Throws `internal` on a newer format. */
export function parseFirst(
  value: string,
  nowMs: number,
  windowMs: number,
): First | undefined {
  const found = FORMAT.exec(value);
  if (found === null)
    throw new BrokerError("internal", {
      message: "Redis remembers a message in a newer format",
    });
  const [, atMs, messageId, messageSeq, pub, more = ""] = found;
  if (nowMs - Number(atMs) >= windowMs) return undefined;
  return {
    messageId: Number(messageId),
    messageSeq: Number(messageSeq),
    pub: Number(pub),
    more,
  };
}
