// What the Store contract's suites work with: a place for data that a driver hands in, a running
// store in it, drafts and expectations.

import type { Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import {
  type ChannelInfo,
  type ChannelRef,
  channelKey,
  type Message,
  type MessageHeader,
  type Topic,
} from "../../src/broker/model.ts";
import type {
  AppendResult,
  ClusterEvent,
  MessageDraft,
  Publisher,
  Store,
} from "../../src/broker/ports.ts";

/** One empty place for data, and stores on it, one after the other. */
export interface StoreLocation {
  /** A store that is not started. Two of one place are never open at once. */
  create(options: StoreOptions): TestedStore;
}

export interface TestedStore extends Store {
  /**
   * From now on the publisher gets what is published under the topics. A store without topics gives
   * it everything.
   */
  listen?(topics: readonly Topic[]): Promise<void>;
  /** Removes all that is to go, of everything stored before the call. */
  sweep(): Promise<unknown>;
}

export interface StoreOptions {
  readonly publisher: Publisher;
  readonly clock: () => number;
  /** 0 = all. */
  readonly maxChannelMessages: number;
  /** 0 = for ever. */
  readonly retentionS: number;
}

export interface StoreDriver {
  readonly name: string;
  /** Registers its own teardown. */
  createLocation(t: Test): Promise<StoreLocation>;
  /** Whether the store takes the time from the clock it is given. */
  readonly supportsClock: boolean;
}

/** The origin of what only marks a place among the events, and is none of them. */
const FENCE = "fence";

/** A running store and what it published. */
export class StoreFixture {
  readonly events: ClusterEvent[] = [];
  nowMs = Date.UTC(2026, 0, 1);
  /**
   * How many messages a channel keeps, and for how long, in the next store that is opened; 0 = all,
   * for ever.
   */
  maxChannelMessages = 0;
  retentionS = 0;
  store: TestedStore;
  /** Called with each event, while the store publishes it. */
  onPublish: (event: ClusterEvent) => void = () => {};
  readonly #location: StoreLocation;
  /** By the ids of fences that came, or that somebody waits for. */
  readonly #fences = new Map<number, () => void>();
  #topics: readonly Topic[] = [];

  constructor(location: StoreLocation) {
    this.#location = location;
    this.store = this.create();
  }

  create(): TestedStore {
    return this.#location.create({
      publisher: {
        publish: (event) => {
          if (event.kind === "message" && event.origin === FENCE)
            return this.#passed(event.message.messageId);
          this.events.push(event);
          this.onPublish(event);
        },
      },
      clock: () => this.nowMs,
      maxChannelMessages: this.maxChannelMessages,
      retentionS: this.retentionS,
    });
  }

  async reopen(): Promise<void> {
    await this.store.close();
    this.store = this.create();
    await this.store.start();
    await this.store.listen?.(this.#topics);
  }

  /** What is published under these topics is among the events from now on, whatever the driver. */
  async listen(topics: readonly Topic[]): Promise<void> {
    this.#topics = [...this.#topics, ...topics];
    await this.store.listen?.(topics);
  }

  /**
   * Resolves once that many events came: one may come after the answer of the call that published
   * it.
   */
  async untilEvents(count: number): Promise<void> {
    while (this.events.length < count) await new Promise((resolve) => setImmediate(resolve));
  }

  /** Resolves once all has come that was published in the channel before the call. */
  async untilPublished(channel: ChannelRef, fromUid: string): Promise<void> {
    const header = { noPersist: true, redDot: false };
    const fence = draftOf({ channel, fromUid, header, origin: FENCE });
    const { messageId } = await this.store.append(fence);
    if (this.#fences.has(messageId)) return;
    await new Promise<void>((resolve) => this.#fences.set(messageId, resolve));
  }

  #passed(messageId: number): void {
    this.#fences.get(messageId)?.();
    this.#fences.set(messageId, () => {});
  }

  get messages(): Message[] {
    return this.events.flatMap((e) => (e.kind === "message" ? [e.message] : []));
  }
}

const NO_FLAGS = {
  ban: false,
  disband: false,
  sendBan: false,
  allowStranger: false,
  large: false,
};
export const group = (id: string): ChannelInfo => ({
  id,
  type: 2,
  ...NO_FLAGS,
});
export const person = (id: string): ChannelInfo => ({
  id,
  type: 1,
  ...NO_FLAGS,
});
export const PERMANENT = { membership: "permanent", reset: false } as const;
export const TEMPORARY = { membership: "temporary", reset: false } as const;
export const ALL = {
  fromSeq: 1,
  toSeq: Number.MAX_SAFE_INTEGER,
  limit: 100_000,
  reverse: false,
  maxBytes: Number.MAX_SAFE_INTEGER,
};

/** A draft of a group message; `over` replaces parts of it. */
export function draftOf(over: Partial<MessageDraft> = {}): MessageDraft {
  const channel = over.channel ?? { id: "g", type: 2 };
  const fromUid = over.fromUid ?? "alice";
  const header: MessageHeader = { noPersist: false, redDot: true };
  return {
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: "",
    header,
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: new TextEncoder().encode('{"type":1}'),
    origin: undefined,
    recipients: undefined,
    permission: "granted",
    ...over,
  };
}

/**
 * What a retry of it would be answered, without appending anything; undefined: it would be a new
 * one.
 */
export async function earlierResult(
  store: Pick<Store, "append">,
  { key, fromUid, clientMsgNo }: Retried,
): Promise<AppendResult | undefined> {
  const draft = retryOf(clientMsgNo);
  const { refused, ...first } = await store.append({
    ...{ ...draft, key, fromUid },
    permission: "send_banned",
  });
  return refused === undefined ? first : undefined;
}

type Retried = Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">;

/** The code of the BrokerError that `promise` is rejected with; undefined when it is not. */
export async function codeOf(promise: Promise<unknown>): Promise<string | undefined> {
  try {
    await promise;
    return undefined;
  } catch (error) {
    return error instanceof BrokerError ? error.code : `not ours: ${error}`;
  }
}

export const retryOf = (clientMsgNo: string) => draftOf({ clientMsgNo });
export const seqsOf = (messages: readonly Message[]) => messages.map((m) => m.messageSeq);

export type FixtureFactory = (t: Test) => Promise<StoreFixture>;
