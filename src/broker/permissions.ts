// Permission to send: pure decisions on facts; the first matching refusal counts [decisions: Group
// rules on send, Personal channel record]. The only implementation: the stores use it too, Redis by
// a table made from it.

import type { SendRefusal } from "./errors.ts";
import { SYSTEM_UID } from "./model.ts";
import type { GroupFacts, PersonFacts } from "./ports.ts";

/** The sender is exempt from all rules but disband; as a receiver it has no lists. */
function isExempt(uid: string): boolean {
  return uid === SYSTEM_UID;
}

/** The refusal of `fromUid` in the group, or undefined. */
export function refuseGroupSend(
  facts: GroupFacts,
  fromUid: string,
): SendRefusal | undefined {
  const { info } = facts;
  if (info?.disband) return "channel_disbanded";
  if (isExempt(fromUid)) return undefined;
  if (facts.isDenied) return "denylisted";
  if (!facts.isSubscriber) return "not_subscriber";
  if (facts.hasAllowlist && !facts.isAllowed) return "not_allowlisted";
  if (info?.ban) return "channel_banned";
  if (info?.sendBan) return "send_banned";
  return undefined;
}

/**
 * The refusal of `fromUid` by `toUid`, or undefined. Users without a record have no rules but their
 * lists. `friendsOnly`: only senders on the receiver's allowlist may send.
 */
export function refusePersonSend(
  facts: PersonFacts,
  fromUid: string,
  toUid: string,
  friendsOnly: boolean,
): SendRefusal | undefined {
  const { receiver, sender } = facts;
  if (receiver?.disband || sender?.disband) return "channel_disbanded";
  if (isExempt(fromUid)) return undefined;
  if (sender?.sendBan) return "send_banned";
  if (receiver?.ban) return "channel_banned";
  if (fromUid === toUid) return undefined;
  if (!isExempt(toUid)) {
    if (facts.isDenied) return "denylisted";
    if (friendsOnly && !facts.isAllowed) return "not_allowlisted";
  }
  const isStranger = facts.receiverHasContacts && !facts.isContact;
  if (isStranger && !receiver?.allowStranger) return "stranger_refused";
  return undefined;
}
