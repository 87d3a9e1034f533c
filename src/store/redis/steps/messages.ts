// The port's messages on Redis: one step in the channel's slot judges the sender, stores a message, takes its place in the order and tells the channel's
// topics. On a Redis Cluster the users of a personal channel are in other slots: their rules are read before the step, and they are told behind it.
// State: counts, names of keys, the order of personal messages whose users' rules are being read.

import type { ChannelKey } from "../../../broker/model.ts";
import { refusePersonSend } from "../../../broker/permissions.ts";
import type {
  Appended,
  ChannelStore,
  HistoryRange,
  HistorySlice,
  MessageDraft,
  MessageStore,
} from "../../../broker/ports.ts";
import { KeyedSequencer } from "../../../lib/keyed-sequencer.ts";
import type { RedisStoreParts } from "../parts.ts";
import { Appends, appendScripts } from "./append.ts";
import type { Placed } from "./append-call.ts";
import { type ChannelNames, ChannelNamesOf } from "./channel-names.ts";
import { historyScripts, readResumeSeqs, readSlice } from "./history.ts";
import { personalScripts, tellAgain, tellUsers } from "./personal.ts";

/** What the link must know. */
export const messageScripts = [
  ...appendScripts,
  ...historyScripts,
  ...personalScripts,
];

export interface MessageParts
  extends RedisStoreParts,
    Pick<ChannelStore, "personFacts"> {
  /** Resolves once a command that a retry is answered with is with its recipients. */
  readonly settleCommand: (key: ChannelKey, messageId: number) => Promise<void>;
}

export interface RedisMessages extends MessageStore {
  /** Since the start: messages accepted, stored or not, and retries of them. */
  readonly counts: { readonly appended: number; readonly duplicates: number };
}

/** Every call throws `unavailable` (it may have taken effect: a retry by clientMsgNo finds it) or `overloaded` as the link does. */
export function createRedisMessages(parts: MessageParts): RedisMessages {
  const messages = new Messages(parts);
  return {
    append: (draft) => messages.append(draft),
    readMessages: (key, range) => messages.read(key, range),
    headSeq: (key) => messages.headSeq(key),
    resumeSeqs: (...asked) => readResumeSeqs(parts, ...asked),
    get counts() {
      return messages.counts;
    },
  };
}

class Messages {
  readonly #parts: MessageParts;
  readonly #names: ChannelNamesOf;
  readonly #appends: Appends;
  /** Personal messages whose users' rules are being read, by channel and sender: none overtakes one whose rules could not be read. */
  readonly #judging = new KeyedSequencer("fail");
  #appended = 0;
  #duplicates = 0;

  constructor(parts: MessageParts) {
    this.#parts = parts;
    this.#names = new ChannelNamesOf(parts.link);
    this.#appends = new Appends(parts);
  }

  get counts(): RedisMessages["counts"] {
    return { appended: this.#appended, duplicates: this.#duplicates };
  }

  /** Nothing is awaited before the message is in its queue, or its users' rules are asked for. */
  async append(draft: MessageDraft): Promise<Appended> {
    const names = this.#names.get(draft.key);
    const judged = names.isApart ? await this.#judge(draft) : draft;
    const placed = await this.#appends.append(names, judged);
    const { refused } = placed;
    if (refused !== undefined)
      return { messageId: 0, messageSeq: 0, duplicate: false, refused };
    const { messageId, messageSeq, isRetry, durable } = placed;
    if (isRetry) this.#duplicates += 1;
    else this.#appended += 1;
    if (isRetry) await this.#tellAgain(draft, names, placed);
    else if (names.isApart) await this.#tellUsers(draft, placed);
    if (durable !== undefined) await durable;
    return { messageId, messageSeq, duplicate: isRetry };
  }

  async read(key: ChannelKey, range: HistoryRange): Promise<HistorySlice> {
    return readSlice(this.#parts, key, range);
  }

  async headSeq(key: ChannelKey): Promise<number> {
    const { head } = this.#names.get(key);
    return Number(await this.#parts.link.call("hget", head, "seq")); // a Buffer, or null: 0
  }

  /** The step cannot read the rules of users in other slots. */
  async #judge(draft: MessageDraft): Promise<MessageDraft> {
    const { key, fromUid, channel, permission } = draft;
    if (permission !== "check") return draft;
    const facts = this.#parts.personFacts(fromUid, channel.id);
    const known = await this.#judging.enter(
      `${fromUid} ${key}`,
      Promise.resolve(facts),
    );
    const refused = refusePersonSend(known, fromUid, channel.id);
    return { ...draft, permission: refused ?? "granted" };
  }

  async #tellUsers(
    { key }: MessageDraft,
    { frame, messageSeq, atMs }: Placed,
  ): Promise<void> {
    const keptAtMs = messageSeq === 0 ? undefined : atMs;
    await tellUsers(this.#parts.link, key, { frame: frame(), keptAtMs });
  }

  /** Does what the first call may have left undone. */
  async #tellAgain(
    { key, origin }: MessageDraft,
    names: ChannelNames,
    place: Placed,
  ): Promise<void> {
    const { messageId, messageSeq, pub, frame } = place;
    const { link, settleCommand } = this.#parts;
    if (pub === 0) {
      await settleCommand(key, messageId);
    } else if (names.isApart && messageSeq === 0) {
      // It may be lost: the retry says what it said.
      await tellUsers(link, key, { frame: frame(), keptAtMs: undefined });
    } else if (names.isApart) {
      await tellAgain(link, { key, origin, log: names.log, place });
    }
  }
}
