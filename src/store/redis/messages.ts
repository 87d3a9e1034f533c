// The port's messages on Redis: one step in the channel's slot stores a message, takes its place in the order and tells the channel's topics. Nothing
// is awaited before that step is sent: calls for one channel take their seqs in their order. State: counts, names of keys.

import type { ChannelKey } from "../../broker/model.ts";
import type {
  Appended,
  HistoryRange,
  HistorySlice,
  MessageDraft,
  MessageStore,
} from "../../broker/ports.ts";
import { appendScripts, runAppend } from "./append-step.ts";
import { type ChannelNames, ChannelNamesOf } from "./channel-names.ts";
import { historyScripts, readSharedSeq, readSlice } from "./history.ts";
import { personalScripts, tellUsers } from "./personal.ts";
import { createRetries, type Retries, type RetryParts } from "./retries.ts";

/** What the link must know. */
export const messageScripts = [
  ...appendScripts,
  ...historyScripts,
  ...personalScripts,
];

export interface RedisMessages extends MessageStore {
  /** Since the start: messages accepted, stored or not, and retries of them. */
  readonly counts: { readonly appended: number; readonly duplicates: number };
}

/** Every call throws `unavailable` (it may have taken effect: a retry by clientMsgNo finds it) or `overloaded` as the link does. */
export function createRedisMessages(parts: RetryParts): RedisMessages {
  const messages = new Messages(parts);
  return {
    append: (draft) => messages.append(draft),
    earlier: (message) => messages.earlier(message),
    readMessages: (key, range) => messages.read(key, range),
    headSeq: (key) => messages.headSeq(key),
    sharedSeq: (...asked) => readSharedSeq(parts, ...asked),
    get counts() {
      return messages.counts;
    },
  };
}

class Messages {
  readonly #parts: RetryParts;
  readonly #names: ChannelNamesOf;
  readonly #retries: Retries;
  #appended = 0;
  #duplicates = 0;

  constructor(parts: RetryParts) {
    this.#parts = parts;
    this.#names = new ChannelNamesOf(parts.link);
    this.#retries = createRetries(parts);
  }

  get counts(): RedisMessages["counts"] {
    return { appended: this.#appended, duplicates: this.#duplicates };
  }

  async append(draft: MessageDraft): Promise<Appended> {
    const { key } = draft;
    const names = this.#names.get(key);
    const placed = await runAppend(this.#parts, names, draft);
    const { messageId, messageSeq, isRetry, atMs } = placed;
    if (isRetry) return this.#asFirst(draft, names, placed);
    this.#appended += 1;
    if (names.isApart) {
      const keptAtMs = messageSeq === 0 ? undefined : atMs;
      const frame = placed.frame();
      await tellUsers(this.#parts.link, key, { frame, keptAtMs });
    }
    await this.#settled(key, names, placed);
    return { messageId, messageSeq, duplicate: false };
  }

  async earlier(
    message: Parameters<MessageStore["earlier"]>[0],
  ): Promise<Appended | undefined> {
    const first = await this.#retries.find(message);
    const names = this.#names.get(message.key);
    return first && this.#asFirst(message, names, first);
  }

  async read(key: ChannelKey, range: HistoryRange): Promise<HistorySlice> {
    const { pub, ...slice } = await readSlice(this.#parts, key, range);
    await this.#parts.arrivals.level(key, pub); // shown after it was published, never before
    return slice;
  }

  async headSeq(key: ChannelKey): Promise<number> {
    const { link, arrivals } = this.#parts;
    const { head } = this.#names.get(key);
    const reply = await link.call("hmget", head, "seq", "pub");
    const [seq = 0, pub = 0] = (reply as (Buffer | null)[]).map(Number); // of a hash; absent ones are 0
    await arrivals.level(key, pub);
    return seq;
  }

  /** Answers a retry as the first one, when that is durable and told. */
  async #asFirst(
    retry: Parameters<Retries["tell"]>[0],
    names: ChannelNames,
    first: Parameters<Retries["tell"]>[2],
  ): Promise<Appended> {
    const { messageId, messageSeq } = first;
    this.#duplicates += 1;
    await this.#retries.tell(retry, names, first);
    await this.#settled(retry.key, names, first);
    return { messageId, messageSeq, duplicate: true };
  }

  /** Durable, and given to this node's listener where it listens. */
  async #settled(
    key: ChannelKey,
    names: ChannelNames,
    { pub, messageId }: { readonly pub: number; readonly messageId: number },
  ): Promise<void> {
    const { written, arrivals } = this.#parts;
    const durable = written(names.head);
    if (durable !== undefined) await durable;
    const arrived = arrivals.level(key, pub, messageId);
    if (arrived !== undefined) await arrived;
  }
}
