// Decides whether a sender may send: reads the state of the channel from the tables and applies the
// rules of `broker/permissions.ts`. Called by the step that appends the message or event.

import type { SendRefusal } from "../../../broker/errors.ts";
import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../../../broker/model.ts";
import { isCheck, refuseGroupSend, refusePersonSend } from "../../../broker/permissions.ts";
import type { GroupFacts, PersonFacts, StreamDraft } from "../../../broker/ports.ts";
import { ALLOWLIST, type ChannelTables, DENYLIST, MEMBER } from "./channel-tables.ts";

/** Checks the sender of a message or a stream event. */
export type PermissionCheck = (
  draft: Pick<StreamDraft, "channel" | "fromUid" | "permission">,
) => SendRefusal | undefined;

export function createPermissionCheck(tables: ChannelTables): PermissionCheck {
  return ({ channel, fromUid, permission }) => {
    if (permission === undefined || permission === "granted") return undefined;
    if (!isCheck(permission)) return permission;
    const { id, type } = channel;
    if (type === GROUP_CHANNEL) {
      const facts = groupFacts(tables, id, fromUid);
      return refuseGroupSend(facts, fromUid, permission);
    }
    const facts = personFacts(tables, fromUid, id);
    return refusePersonSend(facts, fromUid, id, permission);
  };
}

export function groupFacts(tables: ChannelTables, channelId: string, uid: string): GroupFacts {
  const channel: ChannelRef = { id: channelId, type: GROUP_CHANNEL };
  const info = tables.row(channel)?.info;
  const bits = info === undefined ? 0 : tables.bits(channel, uid);
  return {
    info,
    isSubscriber: (bits & MEMBER) !== 0,
    isDenied: (bits & DENYLIST) !== 0,
    hasAllowlist: info !== undefined && tables.listSizes(channel).allowed > 0,
    isAllowed: (bits & ALLOWLIST) !== 0,
  };
}

export function personFacts(tables: ChannelTables, fromUid: string, toUid: string): PersonFacts {
  const to: ChannelRef = { id: toUid, type: PERSON_CHANNEL };
  const { row: receiver, sizes } = tables.rowAndSizes(to);
  const { denied, allowed } = sizes;
  const hasContacts = receiver !== undefined && receiver.members > 0;
  const hasUids = hasContacts || denied + allowed > 0;
  const bits = hasUids ? tables.bits(to, fromUid) : 0;
  return {
    receiver: receiver?.info,
    receiverHasContacts: hasContacts,
    isContact: (bits & MEMBER) !== 0,
    isDenied: (bits & DENYLIST) !== 0,
    hasAllowlist: allowed > 0,
    isAllowed: (bits & ALLOWLIST) !== 0,
    sender: tables.row({ id: fromUid, type: PERSON_CHANNEL })?.info,
  };
}
