// Helpers of the stream follower tests: a store with one stream whose reads can be delayed, and
// followers of that stream.

import { type ChannelEvent, STREAM_CONTENT, STREAM_START } from "../../src/broker/model.ts";
import {
  createStreamFollowers,
  type FollowHandle,
  type FollowTarget,
  type StreamFollowers,
} from "../../src/broker/stream-followers.ts";
import { group } from "./node-names.ts";
import { ModelStream } from "./stream-model.ts";

export const VIEW = { channel: group("g"), uid: undefined };
export const turn = () => new Promise((resolve) => setImmediate(resolve));

/** A store with one stream, named `answer`. Its reads can be held until `release`. */
export class HeldStore {
  readonly stream: ModelStream;
  /** True if new calls to `stream`, `streamTextOffset` and `listen` wait for `release`. */
  holds = false;
  /** True if the stream is no longer in the history. */
  isGone = false;
  /** Error with which calls reject, or `undefined` if they succeed. */
  failure: Error | undefined;
  reads = 0;
  readonly listening = new Set<string>();
  readonly #held: (() => void)[] = [];

  constructor(stream = new ModelStream()) {
    this.stream = stream;
  }

  get heldCount(): number {
    return this.#held.length;
  }

  release(at = 0): void {
    this.#held.splice(at, 1)[0]?.();
  }

  async wait(): Promise<void> {
    if (this.holds) await new Promise<void>((go) => this.#held.push(go));
    if (this.failure !== undefined) throw this.failure;
  }

  /** The port of the store. A held read returns the state at the time of its call. */
  readonly port = {
    stream: async (_key: string, clientMsgNo: string) => {
      this.reads += 1;
      const isKnown = !this.isGone && clientMsgNo === "answer";
      const snapshot = isKnown ? this.stream.snapshot() : undefined;
      await this.wait();
      return snapshot;
    },
    streamTextOffset: async (_key: string, _no: string, index: number) => {
      const { events } = this.stream;
      const offset = index > events.length ? undefined : this.stream.offsetOf(index);
      await this.wait();
      return offset;
    },
  };
}

/** A follower and what its sink received. */
export interface Reading {
  readonly events: ChannelEvent[];
  /** Number of calls to `ended`. */
  ends: number;
  /** True if the sink pauses after each event. */
  pauses: boolean;
  following: FollowHandle | undefined;
}

/** Creates the followers of a node with the store. */
export function createFollowers(store: HeldStore, maxFollowers = 10, maxFollowersPerUser = 0) {
  const errors: unknown[] = [];
  const followers = createStreamFollowers({
    store: store.port,
    interest: {
      listen: (...topics) => {
        for (const topic of topics) store.listening.add(topic);
        return store.wait();
      },
      unlisten: (topic) => store.listening.delete(topic),
    },
    maxFollowers,
    maxFollowersPerUser,
    onError: (error) => errors.push(error),
  });
  return { followers, errors };
}

/** Adds a follower of the stream, from its first event unless the options change that. */
export async function follow(
  followers: StreamFollowers,
  options: Partial<FollowTarget> & { readonly pauses?: boolean } = {},
): Promise<Reading> {
  const { pauses = false, ...target } = options;
  const reading: Reading = { events: [], ends: 0, pauses, following: undefined };
  reading.following = await followers.follow(
    { view: VIEW, clientMsgNo: "answer", fromIndex: 0, ...target },
    {
      push(event) {
        reading.events.push(event);
        return !reading.pauses;
      },
      ended() {
        reading.ends += 1;
      },
    },
  );
  return reading;
}

/** Publishes an event of the stream to the followers. */
export function produce(
  { followers }: { readonly followers: StreamFollowers },
  event: ChannelEvent,
): void {
  followers.onEvent({ kind: "event", event });
}

export const indexes = ({ events }: Reading) => events.map(({ stream }) => stream?.index);

/** Creates a store whose stream has a start and one content event. */
export function storeWithStream(): HeldStore {
  const store = new HeldStore();
  store.stream.add(STREAM_START, "meta");
  store.stream.add(STREAM_CONTENT, "one ");
  return store;
}
