// Followers of a stream outside any session (HTTP): each gets every event from its index, in order,
// at its own pace. State: the followers. Events missed while paused are read from the store and
// merged. A follower that reads by a user's right gets nothing from the moment that right may have
// changed until it has been checked.

import { BrokerError } from "./errors.ts";
import { type ChannelView, viewedKey } from "./ids.ts";
import type { Interest } from "./interest.ts";
import {
  type ChannelEvent,
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  groupTopic,
  type StreamSnapshot,
  type Topic,
  userTopic,
} from "./model.ts";
import type { ClusterEvent, StreamStore } from "./ports.ts";
import { cursorAfter, eventsFrom, type StreamCursor } from "./stream-pieces.ts";

export interface StreamSink {
  /** Takes one event. False: no more until `resume`. */
  push(event: ChannelEvent): boolean;
  /** The stream has ended and all of it was pushed, or it cannot be read on. */
  ended(): void;
}

export interface FollowHandle {
  resume(): void;
  /** Safe to call twice. */
  stop(): void;
}

/** The user by whose right a follower reads. */
interface FollowViewer {
  readonly uid: string;
  /** Whether the user may read on, by the store. Must not reject. */
  mayStay(): Promise<boolean>;
}

export interface FollowTarget {
  readonly view: ChannelView;
  readonly clientMsgNo: string;
  /** The index of the first event wanted. */
  readonly fromIndex: number;
  /** Checked after each read of the store. Undefined: the caller has a right of its own. */
  readonly viewer?: FollowViewer | undefined;
}

export interface StreamFollowers {
  /**
   * Throws `stream_unknown`, `bad_id`, `bad_request` (an index the stream has not reached),
   * `overloaded` at a bound, `unavailable`.
   */
  follow(target: FollowTarget, sink: StreamSink): Promise<FollowHandle>;
  /** A listener of the cluster's events. */
  heard(event: ClusterEvent): void;
  /** Members of the group may have been removed. */
  recheckGroup(channelId: string): void;
  /** Ends every follower. */
  close(): void;
}

interface FollowerParts {
  readonly store: Pick<StreamStore, "stream" | "streamTextOffset">;
  readonly interest: Pick<Interest, "listen" | "unlisten">;
  readonly maxFollowers: number;
  /** Of one user. 0 = unlimited. */
  readonly maxFollowersPerUser: number;
  readonly onError: (error: unknown, what: string) => void;
}

interface Follower {
  readonly key: ChannelKey;
  readonly topics: ReadonlySet<Topic>;
  readonly clientMsgNo: string;
  readonly sink: StreamSink;
  readonly viewer: FollowViewer | undefined;
  cursor: StreamCursor;
  /** `coming`: `follow` has not resolved. */
  status: "coming" | "reading" | "live" | "paused" | "over";
  /** An event was published during the read, which may lack it. */
  isBehind: boolean;
  /** Grows with each read; the result of an older read is dropped. */
  turn: number;
}

export function createStreamFollowers(parts: FollowerParts): StreamFollowers {
  const { store, maxFollowers, maxFollowersPerUser } = parts;
  const table = new FollowerTable(parts.interest);

  function leave(follower: Follower): void {
    follower.status = "over";
    follower.turn += 1;
    table.leave(follower);
  }

  function finish(follower: Follower): void {
    const { status, sink } = follower;
    leave(follower);
    if (status !== "over" && status !== "coming") sink.ended();
  }

  /** Pushes one event; false if no further one may follow now. */
  function give(follower: Follower, event: ChannelEvent): boolean {
    if (event.stream === undefined) return true;
    follower.cursor = cursorAfter(event, event.stream);
    const wantsMore = follower.sink.push(event);
    if (isOver(follower)) return false;
    if (event.stream.state !== "active") finish(follower);
    else if (!wantsMore) follower.status = "paused";
    return follower.status !== "over" && wantsMore;
  }

  /** Reads from the cursor until no event was published during the read, then goes live. */
  async function catchUp(follower: Follower): Promise<void> {
    follower.status = "reading";
    follower.turn += 1;
    const { turn } = follower;
    do {
      follower.isBehind = false;
      const snapshot = await store.stream(follower.key, follower.clientMsgNo);
      const mayStay = (await follower.viewer?.mayStay()) ?? true;
      if (follower.turn !== turn) return;
      if (!mayStay || snapshot === undefined) return finish(follower); // expired
      for (const event of eventsFrom(snapshot, follower.cursor)) if (!give(follower, event)) return;
      if (snapshot.state !== "active") return finish(follower);
    } while (follower.isBehind);
    follower.status = "live";
  }

  function run(follower: Follower): void {
    catchUp(follower).catch((error) => {
      parts.onError(error, "A followed stream could not be read");
      finish(follower);
    });
  }

  /** A paused follower gets no events: it is ended or left as it is. */
  async function judgePaused(follower: Follower, viewer: FollowViewer): Promise<void> {
    const { turn } = follower;
    const mayStay = await viewer.mayStay();
    if (follower.turn === turn && !mayStay) finish(follower);
  }

  /**
   * The viewer's right may have changed: checks it before the next event. `coming` ones check it
   * anyway.
   */
  function recheck(followers: Iterable<Follower>): void {
    for (const follower of followers) {
      const { viewer, status } = follower;
      if (viewer === undefined || status === "coming") continue;
      if (status === "paused") void judgePaused(follower, viewer);
      else run(follower);
    }
  }

  function recheckGroup(channelId: string): void {
    const channel = { id: channelId, type: GROUP_CHANNEL } as const;
    recheck([...table.inChannel(channelKey(channel, ""))]);
  }

  function assertRoom(viewer: FollowViewer | undefined): void {
    if (table.size >= maxFollowers)
      throw new BrokerError("overloaded", {
        message: "Too many readers follow streams here",
      });
    if (viewer === undefined || maxFollowersPerUser === 0) return;
    if (table.ofViewer(viewer.uid).size >= maxFollowersPerUser)
      throw new BrokerError("overloaded", {
        message: "The user follows too many streams here",
      });
  }

  async function begin(follower: Follower, fromIndex: number): Promise<void> {
    await table.enter(follower);
    const { key, clientMsgNo } = follower;
    const found = await store.stream(key, clientMsgNo);
    if (found === undefined) throw new BrokerError("stream_unknown");
    const textOffset = await store.streamTextOffset(key, clientMsgNo, fromIndex);
    if (textOffset === undefined) throw beyond(found);
    if (isOver(follower)) throw new BrokerError("unavailable"); // closed meanwhile
    follower.cursor = { index: fromIndex, textOffset };
  }

  function deliver(event: ChannelEvent): void {
    const { key, clientMsgNo, stream } = event;
    if (stream === undefined) return;
    for (const follower of table.inChannel(key)) {
      if (follower.clientMsgNo !== clientMsgNo) continue;
      if (follower.status === "reading") follower.isBehind = true;
      if (follower.status !== "live") continue;
      if (stream.index === follower.cursor.index) give(follower, event);
      else if (stream.nextIndex > follower.cursor.index) run(follower); // a gap, or merged content that it has in part
    }
  }

  return {
    async follow({ view, clientMsgNo, fromIndex, viewer }, sink) {
      const key = viewedKey(view);
      assertRoom(viewer);
      const follower: Follower = {
        key,
        topics: topicsOf(view, viewer),
        clientMsgNo,
        sink,
        viewer,
        cursor: { index: fromIndex, textOffset: 0 },
        status: "coming",
        isBehind: false,
        turn: 0,
      };
      try {
        await begin(follower, fromIndex);
      } catch (error) {
        leave(follower);
        throw error;
      }
      run(follower);
      return {
        resume: () => {
          if (follower.status === "paused") run(follower);
        },
        stop: () => leave(follower),
      };
    },

    heard(event) {
      if (event.kind === "credential") recheck(table.ofViewer(event.uid));
      else if (event.kind === "removal") recheckGroup(event.channelId);
      else if (event.kind === "event") deliver(event.event);
    },

    recheckGroup,

    close() {
      for (const follower of table.all()) finish(follower);
    },
  };
}

function isOver({ status }: Follower): boolean {
  return status === "over";
}

/** Topics of the stream's events and of changes of the viewer's right. */
function topicsOf(
  { channel, uid }: ChannelView,
  viewer: FollowViewer | undefined,
): ReadonlySet<Topic> {
  const ofChannel =
    channel.type === GROUP_CHANNEL ? groupTopic(channel.id) : userTopic(uid ?? channel.id);
  return new Set(viewer === undefined ? [ofChannel] : [ofChannel, userTopic(viewer.uid)]);
}

function beyond({ nextIndex }: StreamSnapshot): BrokerError {
  return new BrokerError("bad_request", {
    message: `from is beyond the stream's next index, ${nextIndex}`,
    details: [{ path: "from", message: "is beyond the stream" }],
  });
}

/**
 * Maps: followers by channel, by viewer, by topic. A topic is listened to while it has a follower.
 */
class FollowerTable {
  readonly #interest: Pick<Interest, "listen" | "unlisten">;
  readonly #all = new Set<Follower>();
  readonly #byKey = new Map<ChannelKey, Set<Follower>>();
  readonly #byViewer = new Map<string, Set<Follower>>();
  readonly #byTopic = new Map<Topic, Set<Follower>>();

  constructor(interest: Pick<Interest, "listen" | "unlisten">) {
    this.#interest = interest;
  }

  get size(): number {
    return this.#all.size;
  }

  all(): readonly Follower[] {
    return [...this.#all];
  }

  /** May be iterated while they leave. */
  inChannel(key: ChannelKey): Iterable<Follower> {
    return this.#byKey.get(key) ?? [];
  }

  ofViewer(uid: string): ReadonlySet<Follower> {
    return this.#byViewer.get(uid) ?? new Set();
  }

  /**
   * Added at once; resolves when its topics are listened to. Throws `unavailable`; it stays added.
   */
  async enter(follower: Follower): Promise<void> {
    const { key, topics, viewer } = follower;
    this.#all.add(follower);
    add(this.#byKey, key, follower);
    if (viewer !== undefined) add(this.#byViewer, viewer.uid, follower);
    for (const topic of topics) add(this.#byTopic, topic, follower);
    await Promise.all([...topics].map((topic) => this.#interest.listen(topic)));
  }

  /** Safe to call twice. */
  leave(follower: Follower): void {
    const { key, topics, viewer } = follower;
    if (!this.#all.delete(follower)) return;
    remove(this.#byKey, key, follower);
    if (viewer !== undefined) remove(this.#byViewer, viewer.uid, follower);
    for (const topic of topics)
      if (remove(this.#byTopic, topic, follower)) this.#interest.unlisten(topic);
  }
}

function add(map: Map<string, Set<Follower>>, name: string, follower: Follower): void {
  const those = map.get(name) ?? new Set();
  map.set(name, those.add(follower));
}

/** Whether it was the last. */
function remove(map: Map<string, Set<Follower>>, name: string, follower: Follower): boolean {
  const those = map.get(name);
  those?.delete(follower);
  return those?.size === 0 && map.delete(name);
}
