// Decides whether a user may send, from facts about the channel and the user. If several rules
// refuse, the first one determines the error [decisions: Group rules on send, Personal channel
// record]. Pure functions. They are the only implementation of the rules, because Redis uses a
// table that is generated from them.

import type { ErrorCode, SendRefusal } from "./errors.ts";
import { type ChannelInfo, type ChannelRef, PERSON_CHANNEL, SYSTEM_UID } from "./model.ts";
import type { GroupFacts, MessageDraft, PersonFacts, SendCheck } from "./ports.ts";

export interface SendTerms {
  readonly friendsOnly: boolean;
  readonly isSystem: (uid: string) => boolean;
  /**
   * True if a backend may send to a group on behalf of users who are not members. The default is
   * false.
   */
  readonly backendMayImpersonate?: boolean;
}

export function checkOf(
  fromUid: string,
  channel: ChannelRef,
  { friendsOnly, isSystem, backendMayImpersonate }: SendTerms,
  isBackend: boolean,
): SendCheck {
  if (isSystem(fromUid)) return "check_exempt";
  if (channel.type !== PERSON_CHANNEL)
    return isBackend && backendMayImpersonate ? "check_named" : "check";
  if (isSystem(channel.id)) return "check_open";
  return friendsOnly ? "check_friends" : "check";
}

const CHECKS: ReadonlySet<string> = new Set<SendCheck>([
  "check",
  "check_friends",
  "check_exempt",
  "check_open",
  "check_named",
]);

export function isCheck(permission: MessageDraft["permission"]): permission is SendCheck {
  return CHECKS.has(permission);
}

function isExempt(fromUid: string, check: SendCheck): boolean {
  return fromUid === SYSTEM_UID || check === "check_exempt";
}

export function refuseGroupSend(
  facts: GroupFacts,
  fromUid: string,
  check: SendCheck,
): SendRefusal | undefined {
  const { info } = facts;
  if (info?.disband) return "channel_disbanded";
  if (isExempt(fromUid, check)) return undefined;
  if (facts.isDenied) return "denylisted";
  const needsMember = check !== "check_named" || info === undefined;
  if (needsMember && !facts.isSubscriber) return "not_subscriber";
  if (facts.hasAllowlist && !facts.isAllowed) return "not_allowlisted";
  if (info?.ban) return "channel_banned";
  if (info?.sendBan) return "send_banned";
  return undefined;
}

/**
 * Returns the reason to refuse a personal message, or `undefined` if the sender may send. Users
 * without a channel record have no rules except their lists.
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

export type EventRefusal = SendRefusal | Extract<ErrorCode, "client_events_off">;

/**
 * Returns the reason why a client is not allowed to send events, or `undefined` if it is allowed.
 * Also applies to system accounts. `info` is the group's or the receiver's record.
 */
export function refuseClientEvent(info: ChannelInfo | undefined): EventRefusal | undefined {
  return info?.clientEvents === false ? "client_events_off" : undefined;
}
