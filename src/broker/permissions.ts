// Permission to send: pure decisions on facts; the first matching refusal counts [decisions: Group
// rules on send, Personal channel record]. The only implementation: the stores use it too, Redis by
// a table made from it.

import type { SendRefusal } from "./errors.ts";
import { type ChannelRef, PERSON_CHANNEL, SYSTEM_UID } from "./model.ts";
import type { GroupFacts, MessageDraft, PersonFacts, SendCheck } from "./ports.ts";

/** What judging depends on beside the facts of a send. */
export interface SendTerms {
  /** Only senders on the receiver's allowlist may send. */
  readonly friendsOnly: boolean;
  /** Whether it is one of the system accounts, which may change at any time. */
  readonly isSystem: (uid: string) => boolean;
}

/** How a send is judged: system accounts are exempt. */
export function checkOf(
  fromUid: string,
  channel: ChannelRef,
  { friendsOnly, isSystem }: SendTerms,
): SendCheck {
  if (isSystem(fromUid)) return "check_exempt";
  if (channel.type === PERSON_CHANNEL && isSystem(channel.id)) return "check_open";
  return friendsOnly ? "check_friends" : "check";
}

const CHECKS: ReadonlySet<string> = new Set<SendCheck>([
  "check",
  "check_friends",
  "check_exempt",
  "check_open",
]);

/** Whether a draft's permission is still to be judged. */
export function isCheck(permission: MessageDraft["permission"]): permission is SendCheck {
  return CHECKS.has(permission);
}

/** The sender is exempt from all rules but disband. */
function isExempt(fromUid: string, check: SendCheck): boolean {
  return fromUid === SYSTEM_UID || check === "check_exempt";
}

/** The refusal of `fromUid` in the group, or undefined. */
export function refuseGroupSend(
  facts: GroupFacts,
  fromUid: string,
  check: SendCheck,
): SendRefusal | undefined {
  const { info } = facts;
  if (info?.disband) return "channel_disbanded";
  if (isExempt(fromUid, check)) return undefined;
  if (facts.isDenied) return "denylisted";
  if (!facts.isSubscriber) return "not_subscriber";
  if (facts.hasAllowlist && !facts.isAllowed) return "not_allowlisted";
  if (info?.ban) return "channel_banned";
  if (info?.sendBan) return "send_banned";
  return undefined;
}

/**
 * The refusal of `fromUid` by `toUid`, or undefined. Users without a record have no rules but their
 * lists.
 */
export function refusePersonSend(
  facts: PersonFacts,
  fromUid: string,
  toUid: string,
  check: SendCheck,
): SendRefusal | undefined {
  const { receiver, sender } = facts;
  if (receiver?.disband || sender?.disband) return "channel_disbanded";
  if (isExempt(fromUid, check)) return undefined;
  if (sender?.sendBan) return "send_banned";
  if (receiver?.ban) return "channel_banned";
  if (fromUid === toUid) return undefined;
  if (toUid === SYSTEM_UID || check === "check_open") return undefined;
  if (facts.isDenied) return "denylisted";
  if (check === "check_friends" && !facts.isAllowed) return "not_allowlisted";
  const isStranger = facts.receiverHasContacts && !facts.isContact;
  if (isStranger && !receiver?.allowStranger) return "stranger_refused";
  return undefined;
}
