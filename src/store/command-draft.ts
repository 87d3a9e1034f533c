// Checks that a command fits in a store: its uids and other short strings must fit in a key, and
// its time to live must fit in a record. Also determines whose share of an inbox the command uses.
// Pure.

import { BrokerError } from "../broker/errors.ts";
import { MAX_EXPIRE_S } from "../broker/model.ts";
import type { CommandDraft } from "../broker/ports.ts";
import { withoutStack } from "../lib/without-stack.ts";

/** Maximum length of a uid, a channel id or another short string, in UTF-16 code units. */
const MAX_LABEL_UNITS = 256;

export function isTooLong(text: string): boolean {
  return text.length > MAX_LABEL_UNITS;
}

/**
 * Throws `too_large` if a string exceeds `MAX_LABEL_UNITS`, and `bad_request` if `expireS` is
 * invalid.
 */
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
      message: `\`expire\` must be an integer from 0 to ${MAX_EXPIRE_S}.`,
    });
}

/** Sender of every command that comes from a backend. All backends count as one sender. */
export const BACKEND = "";

/**
 * Returns the user whose share of an inbox the command uses, `BACKEND` if no session sent the
 * command.
 */
export function senderOf({ origin, fromUid }: Pick<CommandDraft, "origin" | "fromUid">): string {
  return origin === undefined ? BACKEND : fromUid;
}

/** Returns the maximum number of copies that one sender may have in another user's inbox. */
export function shareOf(maxInbox: number): number {
  return Math.max(1, Math.floor(maxInbox / 10));
}

export function shareIsFull(): BrokerError {
  const message =
    "The recipient has too many unacknowledged commands from the sender. Send again later.";
  return withoutStack(() => new BrokerError("overloaded", { message }));
}
