// Who may send where: pure decisions on facts, in the order a refusal is told [decisions: Group rules on send, Personal channel record]. The only
// implementation: the stores decide by it too, in Redis by a table made from it.

import type { SendRefusal } from "./errors.ts";
import { SYSTEM_UID } from "./model.ts";
import type { GroupFacts, PersonFacts } from "./ports.ts";

/** Why `fromUid` may not send into the group, or undefined. System uids are exempt from all but disband. */
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

/** Why `fromUid` may not send to `toUid`, or undefined. Users without a record have no rules. */
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
