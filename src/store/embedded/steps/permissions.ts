// What deciding on a send needs to know, from the tables of channels, and the decision on a
// message, which is made in the step that appends it. No state. The rule is
// `broker/permissions.ts`.

import type { SendRefusal } from "../../../broker/errors.ts";
import {
  type ChannelRef,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../../broker/model.ts";
import {
  refuseGroupSend,
  refusePersonSend,
} from "../../../broker/permissions.ts";
import type {
  GroupFacts,
  MessageDraft,
  PersonFacts,
} from "../../../broker/ports.ts";
import type { ChannelTables } from "./channel-tables.ts";

/** Decides on a draft, by the rule where it asks for it. */
export type Judge = (draft: MessageDraft) => SendRefusal | undefined;

export function createJudge(tables: ChannelTables): Judge {
  return ({ channel, fromUid, permission }) => {
    if (permission === "granted") return undefined;
    if (permission !== "check") return permission;
    const { id, type } = channel;
    return type === GROUP_CHANNEL
      ? refuseGroupSend(groupFacts(tables, id, fromUid), fromUid)
      : refusePersonSend(personFacts(tables, fromUid, id), fromUid, id);
  };
}

/** The port's `groupFacts`. */
export function groupFacts(
  tables: ChannelTables,
  channelId: string,
  uid: string,
): GroupFacts {
  const channel: ChannelRef = { id: channelId, type: GROUP_CHANNEL };
  const info = tables.row(channel)?.info;
  const isMember = info !== undefined && tables.kinds(channel, uid) !== 0;
  return { info, isSubscriber: isMember };
}

/** The port's `personFacts`. */
export function personFacts(
  tables: ChannelTables,
  fromUid: string,
  toUid: string,
): PersonFacts {
  const to: ChannelRef = { id: toUid, type: PERSON_CHANNEL };
  const receiver = tables.row(to);
  const hasContacts = receiver !== undefined && receiver.members > 0;
  return {
    receiver: receiver?.info,
    receiverHasContacts: hasContacts,
    isContact: hasContacts && tables.kinds(to, fromUid) !== 0,
    sender: tables.row({ id: fromUid, type: PERSON_CHANNEL })?.info,
  };
}
