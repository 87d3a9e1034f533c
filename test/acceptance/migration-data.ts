// Fills a large embedded store, and computes a checksum of each channel and user as the Store port
// returns them, so that two stores can be compared without keeping their contents in memory.

import { channelKey } from "../../src/broker/model.ts";
import type { Store } from "../../src/broker/ports.ts";
import { crc32 } from "../../src/lib/crc32.ts";
import { ALL, draftOf, earlierResult, group } from "../contract/store-fixture.ts";
import { hashOf } from "../migrate/data.ts";
import { conversationsOf } from "../support/conversation-list.ts";

export interface Size {
  readonly messages: number;
  readonly channels: number;
  readonly users: number;
}

const AT_ONCE = 1000;
const MEMBERS = 5;
/** Every n-th channel is a personal channel. */
const PERSONAL_EVERY = 10;

/** The conversation list of every n-th user is compared as well. */
const LISTED_EVERY = 20;

const uidOf = (i: number) => `user-${i}-ü`;

/** Returns the i-th channel as its first member addresses it. */
function channelOf(i: number, { users }: Size) {
  const [uid, peer] = [uidOf(i % users), uidOf((i + 1) % users)];
  const channel =
    i % PERSONAL_EVERY === 0
      ? ({ id: peer, type: 1 } as const)
      : ({ id: `group-${i}`, type: 2 } as const);
  return { channel, uid, key: channelKey(channel, uid) };
}

export async function fillLarge(store: Store, size: Size): Promise<void> {
  const { channels, messages, users } = size;
  await each(users, (i) =>
    store.putDevice({
      ...{ uid: uidOf(i), flag: 0, level: 1 },
      tokenHash: hashOf(`${i}`),
    }),
  );
  await each(channels, async (i) => {
    const { channel } = channelOf(i, size);
    if (channel.type === 1) return;
    const members = Array.from({ length: MEMBERS }, (_, at) => uidOf((i + at * 7) % users));
    await store.createChannel(group(channel.id), members);
  });
  await each(messages, (i) => {
    const { channel, uid, key } = channelOf(i % channels, size);
    return store.append(
      draftOf({
        ...{ channel, key, fromUid: uid, clientMsgNo: `m${i}` },
        payload: Buffer.from(`{"type":1,"content":"message ${i} of ${uid}"}`),
      }),
    );
  });
  await each(channels, async (i) => {
    const { channel, uid } = channelOf(i, size);
    await store.changeConversation(uid, channel, { kind: "unread", unread: 2 });
  });
}

/** Returns a checksum for each channel and user, by name. Equal contents have equal checksums. */
export async function checksums(store: Store, size: Size): Promise<ReadonlyMap<string, number>> {
  const sums = new Map<string, number>();
  const record = (name: string, content: unknown) =>
    sums.set(name, crc32(Buffer.from(JSON.stringify(content))));
  await each(size.channels, async (i) => {
    const { channel, uid, key } = channelOf(i, size);
    const { messages } = await store.readMessages(key, ALL);
    const first = messages[0];
    record(key, {
      messages: messages.map((message) => [
        ...[message.messageId, message.messageSeq, message.clientMsgNo],
        ...[message.fromUid, message.timestampMs],
        Buffer.from(message.payload).toString("base64"),
      ]),
      count: messages.length,
      members: [...(await store.members(channel))].sort(),
      conversation: await store.conversation(uid, channel),
      earlierResult: first && (await earlierResult(store, first)),
    });
  });
  await each(size.users, async (i) => {
    const uid = uidOf(i);
    const device = await store.device(uid, 0);
    const isListed = i % LISTED_EVERY === 0;
    const listed = isListed ? await conversationsOf(store, uid) : [];
    const heads = listed.map(({ channel, headSeq, readSeq, unread }) =>
      [channel.id, headSeq, readSeq, unread].join(" "),
    );
    record(uid, {
      device: device && Buffer.from(device.tokenHash).toString("hex"),
      groups: [...(await store.groupsOf(uid))].sort(),
      heads: heads.sort(),
    });
  });
  return sums;
}

async function each(count: number, step: (i: number) => Promise<unknown>): Promise<void> {
  for (let first = 0; first < count; first += AT_ONCE) {
    const length = Math.min(AT_ONCE, count - first);
    await Promise.all(Array.from({ length }, (_, at) => step(first + at)));
  }
}
