// Helpers for the Store contract's suites: the storage location that a driver provides, a running
// store in it, and drafts of messages.

import type { Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import { logNameOf } from "../../src/broker/log-frame.ts";
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

/** An empty storage location. Stores are opened in it one after the other. */
export interface StoreLocation {
  /** Creates a store that is not started. At most one store of a location is open at a time. */
  create(options: StoreOptions): TestedStore;
}

/** A store with the two methods that the suites need in addition to the port. */
export interface TestedStore extends Store {
  /**
   * Starts to pass the events of these topics to the publisher. A store without topics passes all
   * events.
   */
  listen?(topics: readonly Topic[]): Promise<void>;
  /** Removes everything that is due for removal and was stored before the call. */
  sweep(): Promise<unknown>;
}

/** Options with which the suites create a store. */
export interface StoreOptions {
  readonly publisher: Publisher;
  /** Returns the current time in Unix milliseconds. */
  readonly clock: () => number;
  /** Number of newest messages that a channel keeps. 0 means no limit. */
  readonly maxChannelMessages: number;
  /** Seconds for which a channel keeps a message. 0 means no limit. */
  readonly retentionS: number;
}

/** Creates the stores that the suites test. */
export interface StoreDriver {
  readonly name: string;
  /** Creates a location. Its data is removed when the test ends. */
  createLocation(t: Test): Promise<StoreLocation>;
  /** True if the store reads the time from `StoreOptions.clock`. */
  readonly supportsClock: boolean;
}

/** Origin of a message that only marks a position in the sequence of events and is not recorded. */
const FENCE = "fence";

/** A running store and the events that it published. */
export class StoreFixture {
  readonly events: ClusterEvent[] = [];
  /** Time of the store's clock, in Unix milliseconds. Tests advance it. */
  nowMs = Date.UTC(2040, 0, 1);
  /**
   * Number of newest messages that a channel keeps in the next store that is opened. 0 means no
   * limit.
   */
  maxChannelMessages = 0;
  /** Seconds for which a channel keeps a message in the next store. 0 means no limit. */
  retentionS = 0;
  store: TestedStore;
  /** Called with each event while the store publishes it. */
  onPublish: (event: ClusterEvent) => void = () => {};
  readonly #location: StoreLocation;
  /**
   * Callbacks by the message id of the fence they wait for. A fence that was published before
   * `untilPublished` waits for it has a callback that does nothing.
   */
  readonly #fences = new Map<number, () => void>();
  #topics: readonly Topic[] = [];

  constructor(location: StoreLocation) {
    this.#location = location;
    this.store = this.create();
  }

  /** Creates a store that is not started and publishes into `events`. */
  create(): TestedStore {
    return this.#location.create({
      publisher: {
        publish: (event) => {
          if (event.kind === "message" && event.origin === FENCE)
            return this.#resolveFence(event.message.messageId);
          // The stores do not publish the same log events for streams of channels.
          if (event.kind === "log" && logNameOf(event.nameText).kind === "channel") return;
          this.events.push(event);
          this.onPublish(event);
        },
      },
      clock: () => this.nowMs,
      maxChannelMessages: this.maxChannelMessages,
      retentionS: this.retentionS,
    });
  }

  /** Closes the store and starts a new one in the same location. */
  async reopen(): Promise<void> {
    await this.store.close();
    this.store = this.create();
    await this.store.start();
    await this.store.listen?.(this.#topics);
  }

  /** Starts to record the events of these topics. */
  async listen(topics: readonly Topic[]): Promise<void> {
    this.#topics = [...this.#topics, ...topics];
    await this.store.listen?.(topics);
  }

  /**
   * Waits until `count` events were recorded. An event may be published after the call that caused
   * it has returned.
   */
  async untilEvents(count: number): Promise<void> {
    while (this.events.length < count) await new Promise((resolve) => setImmediate(resolve));
  }

  /**
   * Waits until everything that was published in the channel before this call has been recorded.
   */
  async untilPublished(channel: ChannelRef, fromUid: string): Promise<void> {
    const header = { noPersist: true, redDot: false };
    const fence = draftOf({ channel, fromUid, header, origin: FENCE });
    const { messageId } = await this.store.append(fence);
    if (this.#fences.has(messageId)) return;
    await new Promise<void>((resolve) => this.#fences.set(messageId, resolve));
  }

  #resolveFence(messageId: number): void {
    this.#fences.get(messageId)?.();
    this.#fences.set(messageId, () => {});
  }

  /** Messages that the store published. */
  get messages(): Message[] {
    return this.events.flatMap((event) => (event.kind === "message" ? [event.message] : []));
  }
}

const NO_FLAGS = {
  ban: false,
  disband: false,
  sendBan: false,
  allowStranger: false,
  large: false,
  clientEvents: true,
};
/** Returns the record of a group that has no flags set. */
export const group = (id: string): ChannelInfo => ({
  id,
  type: 2,
  ...NO_FLAGS,
});
/** Returns the record of a user that has no flags set. */
export const person = (id: string): ChannelInfo => ({
  id,
  type: 1,
  ...NO_FLAGS,
});
export const PERMANENT = { membership: "permanent", reset: false } as const;
export const TEMPORARY = { membership: "temporary", reset: false } as const;
/** The range that covers every message of a channel. */
export const ALL = {
  fromSeq: 1,
  toSeq: Number.MAX_SAFE_INTEGER,
  limit: 100_000,
  reverse: false,
  maxBytes: Number.MAX_SAFE_INTEGER,
};

/** Returns a draft of a message by alice in group g. `over` replaces fields. */
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
 * Returns what a retry of the message would return, without storing anything. Returns `undefined`
 * if the message would be a new one, or if an earlier one has a different payload.
 */
export async function earlierResult(
  store: Pick<Store, "append">,
  { key, fromUid, clientMsgNo, payload }: RetryKey,
): Promise<AppendResult | undefined> {
  const draft = retryOf(clientMsgNo);
  const { refused, ...first } = await store.append({
    ...{ ...draft, key, fromUid, payload: payload ?? draft.payload },
    permission: "send_banned",
  });
  return refused === undefined ? first : undefined;
}

/** The fields by which the store recognises a retry. The default `payload` is that of `draftOf`. */
type RetryKey = Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo"> &
  Partial<Pick<MessageDraft, "payload">>;

/** Result of a draft whose clientMsgNo belongs to a message with a different payload. */
export const REUSED: AppendResult = {
  ...{ messageId: 0, messageSeq: 0, duplicate: false },
  refused: "client_msg_no_reused",
};

/**
 * Returns the code of the BrokerError that the promise is rejected with, or `undefined` if it is
 * fulfilled.
 */
export async function codeOf(promise: Promise<unknown>): Promise<string | undefined> {
  try {
    await promise;
    return undefined;
  } catch (error) {
    return error instanceof BrokerError ? error.code : `not a BrokerError: ${error}`;
  }
}

/** Returns a draft with this `clientMsgNo`. A second append of it is a retry. */
export const retryOf = (clientMsgNo: string) => draftOf({ clientMsgNo });
export const seqsOf = (messages: readonly Message[]) => messages.map((m) => m.messageSeq);

/** Creates a fixture with a new, empty, started store. The store is closed when the test ends. */
export type FixtureFactory = (t: Test) => Promise<StoreFixture>;
