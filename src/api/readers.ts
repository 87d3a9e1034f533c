// The endpoint that lists which members have read a message, based on their read positions.

import { type Static, Type } from "typebox";
import type { Channels } from "../broker/channels.ts";
import type { Conversations } from "../broker/conversations.ts";
import { BrokerError } from "../broker/errors.ts";
import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../broker/model.ts";
import { cursorOf } from "./channel-reads.ts";
import { uidRequired } from "./errors.ts";
import { channelId, channelType, idCursor, personUid } from "./fields.ts";
import { jsonReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

/** Maximum number of members on a page. Each member costs one store read. */
const PAGE_SIZE = 100;

export const readersQuery = Type.Object({
  channel_id: channelId,
  channel_type: channelType,
  uid: Type.Optional(personUid),
  message_seq: Type.Integer({
    minimum: 1,
    maximum: Number.MAX_SAFE_INTEGER,
    description: "Sequence number of the message",
  }),
  cursor: Type.Optional(idCursor),
});

type Query = Static<typeof readersQuery>;

export interface ReadersPorts {
  readonly channels: Pick<Channels, "uids">;
  readonly conversations: Pick<Conversations, "read">;
}

export function createReaders({ channels, conversations }: ReadersPorts) {
  /** Returns the read position of a user, or `undefined` if the user has just left the group. */
  async function readSeqOf(uid: string, channel: ChannelRef): Promise<number | undefined> {
    try {
      return (await conversations.read(uid, channel)).readSeq;
    } catch (error) {
      if (error instanceof BrokerError && error.code === "not_in_channel") return undefined;
      throw error;
    }
  }

  async function membersOf({ channel_id: id, channel_type: type, uid = "", cursor = "" }: Query) {
    if (type === GROUP_CHANNEL) {
      const channel = { id, type };
      const page = await channels.uids(channel, "members", { after: cursor, limit: PAGE_SIZE });
      const members = page.ids.map((member) => ({ member, channel }));
      return { members, ...cursorOf(page) };
    }
    const pair = uid === id ? [[uid, id]] : [uid, id].map((own) => [own, own === uid ? id : uid]);
    const members = pair.map(([member = "", other = ""]) => ({
      member,
      channel: { id: other, type: PERSON_CHANNEL } as const,
    }));
    return { members, cursor: "" };
  }

  return async (query: Query): Promise<Awaited<Outcome>> => {
    if (query.channel_type === PERSON_CHANNEL && !query.uid) return uidRequired();
    const { members, cursor } = await membersOf(query);
    const seqs = await Promise.all(
      members.map(({ member, channel }) => readSeqOf(member, channel)),
    );
    const readers = members.flatMap(({ member }, index) => {
      const readSeq = seqs[index];
      if (readSeq === undefined) return [];
      return [{ uid: member, read_seq: readSeq, has_read: readSeq >= query.message_seq ? 1 : 0 }];
    });
    return jsonReply(JSON.stringify({ readers, cursor }));
  };
}
