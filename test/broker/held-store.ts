// A store of one stream whose reads can be held, and readers of that stream: what the tests of the
// followers play on.

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

/** A store of one stream whose reads can be held; what is waited for goes on by `release`. */
export class HeldStore {
  readonly stream: ModelStream;
  /** Reads and listenings wait for `release`. */
  holds = false;
  /** The stream left history. */
  isGone = false;
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

  /** What a read shows is what stood when it was asked. */
  readonly port = {
    stream: async (_key: string, clientMsgNo: string) => {
      this.reads += 1;
      const isKnown = !this.isGone && clientMsgNo === "answer";
      const found = isKnown ? this.stream.snapshot() : undefined;
      await this.wait();
      return found;
    },
    streamTextOffset: async (_key: string, _no: string, index: number) => {
      const { events } = this.stream;
      const found = index > events.length ? undefined : this.stream.offsetOf(index);
      await this.wait();
      return found;
    },
  };
}

export interface Reading {
  readonly got: ChannelEvent[];
  /** How often it was told that it is over. */
  ends: number;
  /** Wants no more after each event. */
  pauses: boolean;
  following: FollowHandle | undefined;
}

export function world(store: HeldStore, maxFollowers = 10, maxFollowersPerUser = 0) {
  const problems: unknown[] = [];
  const followers = createStreamFollowers({
    store: store.port,
    interest: {
      listen: (topic) => {
        store.listening.add(topic);
        return store.wait();
      },
      unlisten: (topic) => store.listening.delete(topic),
    },
    maxFollowers,
    maxFollowersPerUser,
    onError: (error) => problems.push(error),
  });
  return { followers, problems };
}

export async function follow(
  followers: StreamFollowers,
  given: Partial<FollowTarget> & { readonly pauses?: boolean } = {},
): Promise<Reading> {
  const { pauses = false, ...target } = given;
  const reading: Reading = { got: [], ends: 0, pauses, following: undefined };
  reading.following = await followers.follow(
    { view: VIEW, clientMsgNo: "answer", fromIndex: 0, ...target },
    {
      push(event) {
        reading.got.push(event);
        return !reading.pauses;
      },
      ended() {
        reading.ends += 1;
      },
    },
  );
  return reading;
}

/** The producer adds an event and everybody hears of it. */
export function produce(
  { followers }: { readonly followers: StreamFollowers },
  event: ChannelEvent,
): void {
  followers.onEvent({ kind: "event", event });
}

export const indexes = ({ got }: Reading) => got.map(({ stream }) => stream?.index);

export function started(): HeldStore {
  const store = new HeldStore();
  store.stream.add(STREAM_START, "meta");
  store.stream.add(STREAM_CONTENT, "one ");
  return store;
}
