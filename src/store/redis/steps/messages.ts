// The port's messages on Redis: one step in the channel's slot judges the sender, stores a message,
// takes its place in the order and publishes it on the channel's topics. On a Redis Cluster the
// users of a personal channel are in other slots: their rules are read before the step, and they
// are notified behind it. State: counts, names of keys, the order of personal messages whose users'
// rules are being read.

import { isCheck, refusePersonSend } from "../../../broker/permissions.ts";
import type {
  AppendResult,
  ChannelStore,
  MessageDraft,
  MessageStore,
} from "../../../broker/ports.ts";
import { KeyedSequencer } from "../../../lib/keyed-sequencer.ts";
import { encodeExtra, messagePublication } from "../../../redis/wire.ts";
import type { RedisStorePorts } from "../ports.ts";
import { Appends } from "./append.ts";
import type { Placement } from "./append-call.ts";
import { type ChannelNames, ChannelNamesOf } from "./channel-names.ts";
import type { Commands } from "./commands.ts";
import { readResumeSeqs, readSlice } from "./history.ts";
import { publishAgain, publishToUsers } from "./personal.ts";

interface MessageParts extends RedisStorePorts, Pick<ChannelStore, "personFacts"> {
  readonly commands: Pick<Commands, "settle">;
}

interface RedisMessages extends MessageStore {
  /** Since the start: messages accepted, stored or not, and retries of them. */
  readonly counts: { readonly appended: number; readonly duplicates: number };
}

/**
 * Every call throws `unavailable` (it may have taken effect: a retry by clientMsgNo finds it) or
 * `overloaded` as the link does.
 */
export function createRedisMessages(parts: MessageParts): RedisMessages {
  const { link, personFacts, commands } = parts;
  const namesOf = new ChannelNamesOf(link);
  const appends = new Appends(parts);
  const counts = { appended: 0, duplicates: 0 };
  /**
   * Personal messages whose users' rules are being read, by channel and sender: none overtakes one
   * whose rules could not be read.
   */
  const judging = new KeyedSequencer("fail");

  /** The step cannot read the rules of users in other slots. */
  async function judge(draft: MessageDraft): Promise<MessageDraft> {
    const { key, fromUid, channel, permission } = draft;
    if (!isCheck(permission)) return draft;
    const facts = personFacts(fromUid, channel.id);
    const known = await judging.enter(`${fromUid} ${key}`, Promise.resolve(facts));
    const refused = refusePersonSend(known, fromUid, channel.id, permission);
    return { ...draft, permission: refused ?? "granted" };
  }

  /** Does what the first call may have left undone. */
  async function finish(
    draft: MessageDraft,
    { isApart }: ChannelNames,
    placed: Placement,
  ): Promise<void> {
    if (placed.publicationSeq === 0) await commands.settle(draft.key, placed.messageId);
    else if (isApart && placed.messageSeq === 0)
      await publish(draft, placed); // the first one may be lost: the retry has its content
    else if (isApart) await publishAgain(link, draft, placed);
  }

  async function publish(draft: MessageDraft, placed: Placement): Promise<void> {
    const keptAtMs = placed.messageSeq === 0 ? undefined : placed.atMs;
    const extra = encodeExtra({ ...draft, idBefore: placed.idBefore });
    const frame = messagePublication({ ...placed, extra });
    await publishToUsers(link, draft.key, frame, keptAtMs);
  }

  return {
    counts,

    /** Nothing is awaited before the message is in its queue, or its users' rules are asked for. */
    async append(draft): Promise<AppendResult> {
      const names = namesOf.get(draft.key);
      const judged = names.isApart ? await judge(draft) : draft;
      const placed = await appends.append(names, judged);
      const { refused } = placed;
      if (refused !== undefined) return { messageId: 0, messageSeq: 0, duplicate: false, refused };
      const { messageId, messageSeq, isRetry, durable } = placed;
      if (isRetry) counts.duplicates += 1;
      else counts.appended += 1;
      if (isRetry) await finish(draft, names, placed);
      else if (names.isApart) await publish(draft, placed);
      if (durable !== undefined) await durable;
      return { messageId, messageSeq, duplicate: isRetry };
    },

    readMessages: (key, range) => readSlice(parts, key, range),

    async headSeq(key) {
      const { head } = namesOf.get(key);
      return Number(await link.call("hget", head, "seq")); // a Buffer, or null: 0
    },

    resumeSeqs: (...asked) => readResumeSeqs(parts, ...asked),
  };
}
