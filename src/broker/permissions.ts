// Permission to send: pure decisions on facts; the first matching refusal counts [decisions: Group
// rules on send, Personal channel record]. The only implementation: the stores use it too, Redis by
// a table made from it.

import type { SendRefusal } from "./errors.ts";
import { SYSTEM_UID } from "./model.ts";
import type { GroupFacts, PersonFacts } from "./ports.ts";

/**
 * The refusal of `fromUid` in the group, or undefined. System uids are exempt from all rules but
 * disband.
 */
export function refuseGroupSend(
  facts: GroupFacts,
  fromUid: string,
): SendRefusal | undefined {
  const { info } = facts;
  if (info?.disband) return "channel_disbanded";
  if (fromUid === SYSTEM_UID) return undefined;
  if (!facts.isSubscriber) return "not_subscriber";
  if (info?.ban) return "channel_banned";
  if (info?.sendBan) return "send_banned";
  return undefined;
}

/** The refusal of `fromUid` by `toUid`, or undefined. Users without a record have no rules. */
export function refusePersonSend(
  facts: PersonFacts,
  fromUid: string,
  toUid: string,
): SendRefusal | undefined {
  const { receiver, sender } = facts;
  if (receiver?.disband || sender?.disband) return "channel_disbanded";
  if (fromUid === SYSTEM_UID) return undefined;
  if (sender?.sendBan) return "send_banned";
  if (receiver?.ban) return "channel_banned";
  if (fromUid === toUid) return undefined;
  const isStranger = facts.receiverHasContacts && !facts.isContact;
  if (isStranger && !receiver?.allowStranger) return "stranger_refused";
  return undefined;
}
