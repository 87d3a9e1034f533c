// What of a command no store keeps: names that fit no key or label, a time to live that fits no
// record. Pure.

import { BrokerError } from "../broker/errors.ts";
import type { CommandDraft } from "../broker/ports.ts";

/**
 * Longest uid or label of a command: an inbox's key and a label fit a key of the database. Edges
 * refuse far shorter ones.
 */
const MAX_LABEL_UNITS = 256;
const MAX_EXPIRE_S = 0xffff_ffff;

/** Whether no key of an inbox or label holds it. */
export function isTooLong(text: string): boolean {
  return text.length > MAX_LABEL_UNITS;
}

/** Throws `too_large` or `bad_request` for what no record or key can hold. */
export function assertFits(draft: CommandDraft): void {
  const { channel, fromUid, clientMsgNo, tagKey = "", expireS } = draft;
  const topic = draft.passthrough?.topic ?? "";
  if (
    [channel.id, fromUid, clientMsgNo, tagKey, topic].some(isTooLong) ||
    draft.recipients.some(isTooLong) ||
    draft.pushOnlyRecipients.some(isTooLong)
  )
    throw new BrokerError("too_large");
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    throw new BrokerError("bad_request", {
      message: `expire is an integer from 0 to ${MAX_EXPIRE_S}`,
    });
}
