// One script in the channel's slot checks the sender, stores the message under the next seq and
// publishes it on the channel's topics. On a Redis Cluster, the users of a personal channel are in
// other slots: their rules are read before the script runs, and they are notified afterwards.

import { messageTimeMs } from "../../../broker/model.ts";
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
import { type ChannelNames, ChannelNamesOf, dedupeKey } from "./channel-names.ts";
import type { Commands } from "./commands.ts";
import { readSlice } from "./history.ts";
import { publishAgain, publishToUsers } from "./personal.ts";

interface MessagePorts extends RedisStorePorts, Pick<ChannelStore, "personFacts"> {
  readonly commands: Pick<Commands, "settle">;
}

interface RedisMessages extends Omit<MessageStore, "seqOfSource"> {
  readonly counts: { readonly appended: number; readonly duplicates: number };
}

export function createRedisMessages(ports: MessagePorts): RedisMessages {
  const { link, personFacts, commands } = ports;
  const namesOf = new ChannelNamesOf(link);
  const appends = new Appends(ports);
  const counts = { appended: 0, duplicates: 0 };
  /**
   * Keeps messages in order while rules are read. If a read fails, the messages that wait for the
   * read also fail.
   */
  const ruleReads = new KeyedSequencer("fail");

  /**
   * Decides whether the sender of a personal message may send. This check is needed on a Redis
   * Cluster, where the channel's script cannot read the users' rules.
   */
  async function checkSender(draft: MessageDraft): Promise<MessageDraft> {
    const { key, fromUid, channel, permission } = draft;
    if (!isCheck(permission)) return draft;
    const facts = personFacts(fromUid, channel.id);
    const senderFacts = await ruleReads.enter(`${fromUid} ${key}`, Promise.resolve(facts));
    const refused = refusePersonSend(senderFacts, fromUid, channel.id, permission);
    return { ...draft, permission: refused ?? "granted" };
  }

  async function finish(
    draft: MessageDraft,
    { isApart }: ChannelNames,
    placement: Placement,
  ): Promise<void> {
    if (placement.publicationSeq === 0) await commands.settle(draft.key, placement.messageId);
    else if (isApart && placement.messageSeq === 0) {
      // A message that is not stored must be published again from the draft of the retry. A draft
      // with the permission `refused_by_hook` cannot be published. It only serves to look for an
      // earlier call, and has the sender's payload, which a hook may have replaced in that call.
      if (draft.permission !== "refused_by_hook") await publish(draft, placement);
    } else if (isApart) await publishAgain(ports, draft, placement);
  }

  async function publish(draft: MessageDraft, placement: Placement): Promise<void> {
    const keptAtMs = placement.messageSeq === 0 ? undefined : messageTimeMs(placement.messageId);
    const extra = encodeExtra({ ...draft, idBefore: placement.idBefore });
    const frame = messagePublication({ ...placement, extra });
    await publishToUsers(ports, draft.key, frame, keptAtMs);
  }

  return {
    counts,

    async seqOfRetry(key, fromUid, clientMsgNo) {
      const record = await link.call("get", dedupeKey(link.keys, { key, fromUid, clientMsgNo }));
      // `dedupe.lua` defines the format.
      const [, writtenMs, seq] = /^(\d+) (\d+)-/.exec(record === null ? "" : String(record)) ?? [];
      const windowMs = ports.limits.dedupeWindowS * 1000;
      if (ports.clock() - Number(writtenMs ?? 0) >= windowMs) return undefined;
      return Number(seq) || undefined;
    },

    /**
     * To keep the order of the calls, awaits nothing before the message is queued. If the rules for
     * its sender and recipient must be read first, awaits nothing before the rules are requested.
     */
    async append(draft): Promise<AppendResult> {
      const names = namesOf.get(draft.key);
      const checked = names.isApart ? await checkSender(draft) : draft;
      const placement = await appends.append(names, checked);
      const { refused } = placement;
      if (refused !== undefined) return { messageId: 0, messageSeq: 0, duplicate: false, refused };
      const { messageId, messageSeq, isRetry, durable } = placement;
      if (isRetry) counts.duplicates += 1;
      else counts.appended += 1;
      if (isRetry) await finish(draft, names, placement);
      else if (names.isApart) await publish(draft, placement);
      if (durable !== undefined) await durable;
      return { messageId, messageSeq, duplicate: isRetry };
    },

    readMessages: (key, range) => readSlice(ports, key, range),

    async headSeq(key) {
      const { head } = namesOf.get(key);
      return Number(await link.call("hget", head, "seq")); // a `Buffer`, or null, which becomes 0
    },
  };
}
